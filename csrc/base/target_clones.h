/* Compiles a function for several instruction sets; the loader picks one. For loops that the compiler vectorises.
 * It needs GCC and ifunc; elsewhere only the baseline is compiled, and with sanitizers, whose functions are not there
 * yet when the loader picks. All clones give the same bits, because none contracts or reorders floats (files with
 * floats are built with -ffp-contract=off). */
#ifndef OE_TARGET_CLONES_H
#define OE_TARGET_CLONES_H

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define OE_TARGET_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OE_TARGET_CLONES
#endif

#endif
