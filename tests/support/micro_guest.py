"""A minimal guest: a boot sector that writes a word to the serial console, and then counts about once a second.

It boots in less than a second even without KVM. Its counter shows whether it continued or rebooted:

    HELLO word
    TICK 00001
    TICK 00002

`fill_mb`: memory in MiB that the guest fills with different numbers at its start. A live migration must copy it.
`power_button`: the guest shuts down when its power button is pressed. By default it ignores the button.
"""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

DISK_BYTES = 1024 * 1024
_SOURCE = """
    .code16
    .globl _start
_start:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    movw %ax, %ss
    movw $0x7c00, %sp
    sti
    movw $line, %si
1:  lodsw                           # pairs of a register of the serial line and its value
    testw %ax, %ax
    jz 2f
    movzbw %al, %dx
    addw $0x300, %dx
    movb %ah, %al
    outb %al, %dx
    jmp 1b
2:  cli                             # memory beyond the first MiB, by a segment without a limit
    lgdt table
    movl %cr0, %eax
    orb $1, %al
    movl %eax, %cr0
    movw $8, %bx
    movw %bx, %es
    andb $0xfe, %al
    movl %eax, %cr0
    sti
    movl $0x100000, %edi
    movl ${fill_mb} * 0x40000, %ecx
    jecxz 3f
1:  movl %ecx, %es:(%edi)
    addl $4, %edi
    decl %ecx
    jnz 1b
3:  movw $0x602, %dx                # ACPI at the firmware's address: enables the power button
    movw ${power_button} * 0x100, %ax
    outw %ax, %dx
    movw $hello, %si
    call write
count:
    movw $digits + 4, %di
1:  incb (%di)
    cmpb $'9' + 1, (%di)
    jb 2f
    movb $'0', (%di)
    decw %di
    jmp 1b
2:  movw $tick, %si
    call write
    movw $18, %cx                   # the clock ticks 18.2 times a second
1:  hlt
    movw $0x600, %dx
    inw %dx, %ax
    testb $1, %ah
    jz 2f
    movw $0x604, %dx
    movw $0x2000, %ax
    outw %ax, %dx
2:  movw 0x46c, %ax
    cmpw before, %ax
    je 1b
    movw %ax, before
    loop 1b
    jmp count
write:
    lodsb
    testb %al, %al
    jz 2f
    movb %al, %bl
1:  movw $0x3fd, %dx
    inb %dx, %al
    testb $0x20, %al
    jz 1b
    movw $0x3f8, %dx
    movb %bl, %al
    outb %al, %dx
    jmp write
2:  ret
before: .word 0
    .balign 8
flat:   .quad 0, 0x00cf92000000ffff
table:  .word 15
    .long flat
line:   .byte 0xf9, 0, 0xfb, 0x80, 0xf8, 1, 0xf9, 0, 0xfb, 3, 0, 0
tick:   .ascii "TICK "
digits: .asciz "00000\\r\\n"
hello:  .asciz "HELLO {word}\\r\\n"
    .org 510
    .word 0xaa55
"""


@cache
def boot_sector(word: str = "micro", fill_mb: int = 0, power_button: bool = False) -> bytes:
    if not word.isalnum() or len(word) > 64:
        raise ValueError(f"word must be alphanumeric, with at most 64 characters: {word!r}")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory)
        source = _SOURCE.replace("{word}", word).replace("{fill_mb}", str(fill_mb))
        source = source.replace("{power_button}", str(int(power_button)))
        (path / "boot.s").write_text(source)
        subprocess.run(["as", "--32", "-o", path / "boot.o", path / "boot.s"], check=True)
        flags = ["-m", "elf_i386", "-Ttext", "0x7c00", "--oformat", "binary"]
        subprocess.run(["ld", *flags, "-o", path / "boot", path / "boot.o"], check=True)
        return (path / "boot").read_bytes()


def image(word: str = "micro", fill_mb: int = 0, power_button: bool = False) -> bytes:
    """The content of a raw disk."""
    return boot_sector(word, fill_mb, power_button).ljust(DISK_BYTES, b"\0")
