// SPDX-License-Identifier: MIT OR Apache-2.0
// The types that redis.eim names beside those of C: none.
int none;
