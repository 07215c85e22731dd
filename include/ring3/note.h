/* How ring3's headers write notes of ELF files (elf(5)). Include ring3/eim.h or ring3/trace.h, not this.
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#ifndef RING3_NOTE_H
#define RING3_NOTE_H

/* Text as the assembler wants it: in quotation marks, with escapes. */
#define RING3_NOTE_QUOTE(text) #text
#define RING3_NOTE_STRING(text) RING3_NOTE_QUOTE(text)

/* One note in a section of this name and these flags: sizes of owner and description, type, owner, description. The section is not
 * loaded. The description stands between RING3_NOTE_OPEN and RING3_NOTE_CLOSE. There is no `%`, so both stand in any asm. */
#define RING3_NOTE_OPEN(section, flags, owner, type) \
    ".pushsection " section ",\"" flags "\",\"note\"\n" \
    ".balign 4\n" \
    ".4byte 8992f-8991f, 8994f-8993f, " #type "\n" \
    "8991: .asciz \"" owner "\"\n" \
    "8992: .balign 4\n" \
    "8993:\n"
#define RING3_NOTE_CLOSE \
    "8994: .balign 4\n" \
    ".popsection\n"

#endif
