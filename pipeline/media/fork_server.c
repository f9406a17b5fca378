/* Lets a program wait after it was loaded, and run from there as often as asked: a fork instead of a start.
 *
 * Preloaded into ffmpeg or ffprobe (LD_PRELOAD), which spend 0.1 s of CPU time on linking two hundred libraries and
 * then milliseconds on a short file. Takes the place of `main`: receives one request at a time from the socket whose
 * number FORK_SERVER_FD holds, forks, and the child goes on into the program's own `main` with the arguments,
 * descriptors and limits of the request. The server itself never reads what the request's files hold. The technique
 * is that of AFL's fork server (https://lcamtuf.blogspot.com/2014/10/fuzzing-binaries-without-execve.html).
 *
 * Messages (SOCK_SEQPACKET; numbers are int64 of this machine):
 *   server -> "ready"
 *   client -> memory_bytes, cpu_soft_s, cpu_hard_s, open_files, descriptors, arguments, then the number that each
 *             descriptor shall have, then the arguments, each ending in NUL; the descriptors as SCM_RIGHTS
 *   server -> 1 once it forked, then 2, exit status, CPU time of the server and all its children so far in us
 * The exit status of a child that a signal ended is 128 + its number, as a shell says it.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 16, MOST_ARGUMENTS = 4096, MOST_BYTES = 1 << 18, FORKED = 1, ENDED = 2 };
enum { MEMORY, CPU_SOFT, CPU_HARD, OPEN_FILES, DESCRIPTORS, ARGUMENTS, NUMBERS };

typedef int main_function(int, char **, char **);
typedef int start_function(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

static main_function *program;
static int64_t request[MOST_BYTES / sizeof(int64_t) + 1];
static int received[MOST_DESCRIPTORS];
static char *arguments[MOST_ARGUMENTS + 1];

static void give_up(const char *why) {
    dprintf(2, "fork server: %s: %s\n", why, strerror(errno));
    _exit(125);
}

static void must(int result, const char *what) {
    if (result < 0) give_up(what);
}

static void refuse(int wrong, const char *why) {
    errno = EPROTO;
    if (wrong) give_up(why);
}

static int threads(void) {
    DIR *tasks = opendir("/proc/self/task");
    int count = 0;
    if (tasks == NULL) give_up("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* Closes what the server inherited: its children shall have what they are given and nothing else. */
static void keep_only(int channel) {
    DIR *open_ones = opendir("/proc/self/fd");
    if (open_ones == NULL) give_up("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(open_ones)) != NULL;) {
        int number = atoi(entry->d_name);
        if (number > 2 && number != channel && number != dirfd(open_ones)) close(number);
    }
    closedir(open_ones);
}

/* Receives a request; returns its size in bytes, 0 when nobody is left to ask. */
static ssize_t receive(int channel) {
    union {
        char bytes[CMSG_SPACE(sizeof received)];
        struct cmsghdr aligned;
    } control;
    struct iovec whole = {request, MOST_BYTES};
    struct msghdr message = {
        .msg_iov = &whole, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size;
    do size = recvmsg(channel, &message, 0);
    while (size < 0 && errno == EINTR);
    if (size <= 0) return 0;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    int64_t count = request[DESCRIPTORS];
    refuse(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC), "the request is too long");
    refuse(size < (ssize_t)(NUMBERS * sizeof(int64_t)), "the request is too short");
    refuse(count < 1 || count > MOST_DESCRIPTORS, "bad number of descriptors");
    refuse(rights == NULL || rights->cmsg_len != CMSG_LEN(count * sizeof(int)), "descriptors are missing");
    memcpy(received, CMSG_DATA(rights), count * sizeof(int));
    return size;
}

/* Points `arguments` at what the request of `size` bytes holds; returns how many. */
static int read_arguments(ssize_t size) {
    char *next = (char *)&request[NUMBERS + request[DESCRIPTORS]], *end = (char *)request + size;
    int64_t count = request[ARGUMENTS];
    *end = '\0';
    refuse(count < 1 || count > MOST_ARGUMENTS, "bad number of arguments");
    for (int number = 0; number < count; number++) {
        refuse(next >= end, "arguments are missing");
        arguments[number] = next;
        next += strlen(next) + 1;
    }
    arguments[count] = NULL;
    return (int)count;
}

/* Gives the child its descriptors under the numbers that were asked for, and no other but the server's null device
 * as its input. */
static void place_descriptors(int channel) {
    int64_t count = request[DESCRIPTORS], *numbers = &request[NUMBERS];
    int above = channel;
    for (int i = 0; i < count; i++) {
        if (numbers[i] > above) above = (int)numbers[i];
        if (received[i] > above) above = received[i];
    }
    for (int i = 0; i < count; i++) {
        int moved = fcntl(received[i], F_DUPFD, above + 1);
        must(moved, "fcntl");
        close(received[i]);
        received[i] = moved;
    }
    close(channel);
    for (int i = 0; i < count; i++) {
        must(dup2(received[i], (int)numbers[i]), "dup2");
        close(received[i]);
    }
}

static void limit(int resource, int64_t soft, int64_t hard) {
    struct rlimit bound = {(rlim_t)soft, (rlim_t)hard};
    must(setrlimit(resource, &bound), "setrlimit");
}

/* Makes a child of the server what the request asks for; what goes wrong ends it with status 125. */
static void become_child(int channel) {
    setsid();
    must(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    place_descriptors(channel);
    limit(RLIMIT_CORE, 0, 0);
    limit(RLIMIT_FSIZE, 0, 0);
    limit(RLIMIT_NOFILE, request[OPEN_FILES], request[OPEN_FILES]);
    limit(RLIMIT_CPU, request[CPU_SOFT], request[CPU_HARD]);
    limit(RLIMIT_AS, request[MEMORY], request[MEMORY]);
    unsetenv("LD_PRELOAD");
    unsetenv("FORK_SERVER_FD");
}

static int64_t used_us(int who) {
    struct rusage usage;
    getrusage(who, &usage);
    int64_t seconds = usage.ru_utime.tv_sec + usage.ru_stime.tv_sec;
    return seconds * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void tell(int channel, const void *what, size_t size) {
    if (send(channel, what, size, MSG_NOSIGNAL) < 0) _exit(0);
}

/* Waits for the child to end, and ends whatever it left behind. */
static int outcome_of(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) give_up("waitpid");
    /* For the first process of a PID namespace, -1 is everything else in it. */
    kill(getpid() == 1 ? -1 : -child, SIGKILL);
    while (waitpid(-1, NULL, WNOHANG) > 0) continue;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int serve(int argc, char **argv, char **environment) {
    const char *named = getenv("FORK_SERVER_FD");
    if (named == NULL) return program(argc, argv, environment);
    int channel = atoi(named);
    /* What one child left could otherwise trace a later one; nobody but itself can look into it. */
    must(prctl(PR_SET_DUMPABLE, 0), "prctl");
    keep_only(channel);
    refuse(threads() != 1, "a library began a thread, which a fork would not have");
    tell(channel, "ready", 5);
    for (ssize_t size; (size = receive(channel)) > 0;) {
        int count = read_arguments(size);
        pid_t child = fork();
        must(child, "fork");
        if (child == 0) {
            become_child(channel);
            return program(count, arguments, environ);
        }
        for (int i = 0; i < request[DESCRIPTORS]; i++) close(received[i]);
        int64_t forked = FORKED;
        tell(channel, &forked, sizeof forked);
        int64_t status = outcome_of(child);
        int64_t ended[] = {ENDED, status, used_us(RUSAGE_SELF) + used_us(RUSAGE_CHILDREN)};
        tell(channel, ended, sizeof ended);
    }
    _exit(0);
}

int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*rtld_fini)(void), void *stack_end) {
    start_function *start = NULL;
    program = main;
    /* Programs linked before glibc 2.34 pass their own constructors, which only the older version runs. */
    const char *older =
#if defined(__aarch64__)
        "GLIBC_2.17";
#else
        "GLIBC_2.2.5";
#endif
    if (init != NULL) start = (start_function *)dlvsym(RTLD_NEXT, "__libc_start_main", older);
    if (start == NULL) start = (start_function *)dlsym(RTLD_NEXT, "__libc_start_main");
    return start(serve, argc, argv, init, fini, rtld_fini, stack_end);
}
