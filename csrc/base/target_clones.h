/* Loops that the compiler vectorises are compiled for several instruction sets, chosen when the library is loaded.
 * GCC needs ifunc support for that; elsewhere there is the baseline. No path may contract or reorder floats: all give
 * the same bits (the build passes -ffp-contract=off where there are any). */
#ifndef OE_TARGET_CLONES_H
#define OE_TARGET_CLONES_H

#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12 && !defined(__SANITIZE_ADDRESS__)
#define OE_TARGET_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OE_TARGET_CLONES
#endif

#endif
