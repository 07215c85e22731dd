// SPDX-License-Identifier: MIT OR Apache-2.0

// Functions that fault in the middle, as their callers expect: Go's run-time makes panics of that. Prints "ready", waits for a
// number, calls each as often, and prints their sums.
package main

import (
	"bufio"
	"fmt"
	"os"
)

type box struct{ a, b, c int }

//go:noinline
func (x *box) framed(i int) int {
	var a [8]int
	a[i&7] = i
	return x.b + a[(i+1)&7]
}

//go:noinline
func (x *box) leaf() int { return x.b + x.c }

//go:noinline
func divided(a, b int) int { return a/b + 1 }

func try(call func() int) (result int) {
	defer func() {
		if recover() != nil {
			result = -1
		}
	}()
	return call()
}

func main() {
	fmt.Println("ready")
	var rounds int
	fmt.Fscan(bufio.NewReader(os.Stdin), &rounds)
	var boxes = [2]*box{nil, {1, 2, 3}}
	var sums [3]int
	for i := 0; i < rounds; i++ {
		x := boxes[i%2]
		sums[0] += try(func() int { return x.framed(i) })
		sums[1] += try(func() int { return x.leaf() })
		sums[2] += try(func() int { return divided(i, i%3) })
	}
	fmt.Println(sums[0], sums[1], sums[2])
}
