// Loaded by `shapes libraries` after the probe on it was made.
int in_library(int x) { __asm__ volatile("" : "+r"(x)); return x * 2; }
// Not alone at the end of the text: the bytes behind the last function of a file are nobody's padding.
int behind_it(int x) { return x; }
