"""How a recording is looked at.

looking ─▶ probe      what is it      headers, tracks; orientation, exif, tiff, stills: pictures
                                      chunks, stale, sizes, joined: what the file claims, what follows
        ─▶ plan       how much        ladder: how much less, if time is short
        ─▶ decode     sound, frames   reader: ffmpeg, a window at a time; animated, draw: what ffmpeg cannot read
                                      sound, mono, matroska; pictures
                                     skipping, key_frames: what need not be decoded
                                      completeness: what was not there
process, sandbox, capabilities: how ffmpeg runs, where, and what it can do.
"""

VERSION = 4
"""Changes whenever a file may reach the model as other sound or pictures: rows of two versions do not mix unasked."""
