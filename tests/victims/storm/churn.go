// SPDX-License-Identifier: MIT OR Apache-2.0

// Goroutines whose stacks grow, channels, and garbage, until a line of input comes. Prints how many rounds were made, and how many
// were wrong.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

type node struct {
	left, right *node
	value       int
}

//go:noinline
func work(x uint64) uint64 {
	return x*6364136223846793005 + 1442695040888963407
}

//go:noinline
func tree(depth int) *node {
	if depth == 0 {
		return &node{value: 1}
	}
	return &node{tree(depth - 1), tree(depth - 1), 1}
}

//go:noinline
func sum(n *node) int {
	if n == nil {
		return 0
	}
	return sum(n.left) + sum(n.right) + n.value
}

//go:noinline
func deep(n int) int {
	var pad [64]int
	pad[n%64] = n
	if n == 0 {
		return 0
	}
	return deep(n-1) + pad[n%64] - n + 1
}

func main() {
	var stop atomic.Bool
	var rounds, wrong atomic.Uint64
	var all sync.WaitGroup
	for i := 0; i < 4; i++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for x := uint64(1); !stop.Load(); {
				results := make(chan int, 2)
				go func() { results <- sum(tree(8)) }()
				go func() { results <- deep(500) }()
				next := work(x)
				if <-results+<-results != 511+500 || next != x*6364136223846793005+1442695040888963407 {
					wrong.Add(1)
				}
				x = next
				rounds.Add(1)
			}
		}()
	}
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	stop.Store(true)
	all.Wait()
	fmt.Println(rounds.Load(), wrong.Load())
	if wrong.Load() != 0 {
		os.Exit(1)
	}
}
