"""How a recording is looked at.

looking ─▶ probe      what is it      tracks, orientation, exif, chunks
        ─▶ plan       how much        ladder: how much less, if time is short
        ─▶ decode     sound, frames   reader: ffmpeg, a window at a time; animated, draw: what ffmpeg cannot read
                                      sound, mono, matroska; pictures
                                      completeness: what was not there
process, sandbox, capabilities: how ffmpeg runs, where, and what it can do.
"""
