// SPDX-License-Identifier: MIT OR Apache-2.0

// Goroutines whose functions return in all the ways that there are: after their stacks have grown and were moved, under
// garbage collection, behind a recovered panic, or not at all. Prints "ready", waits for a line, works, and prints for each
// function how often it was entered and how often it returned.
package main

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

const goroutines, rounds = 20, 50

var faults, deepReturns, fragileReturns, throwingReturns, throwingPanics, yieldingReturns, manyReturns, crampedReturns atomic.Int64

func check(what string, right bool) {
	if !right {
		faults.Add(1)
		fmt.Fprintln(os.Stderr, "not so:", what)
	}
}

// A stack that grows and moves, with pointers into it.
//
//go:noinline
func deep(levels int, outer *[16]int) int {
	var room [16]int
	room[levels%16] = levels
	if levels == 0 {
		return 1
	}
	result := deep(levels-1, &room) + 1
	if room[levels%16] != levels || outer[(levels+1)%16] != levels+1 {
		check("what is on the stack", false)
	}
	return result
}

// Returns behind a panic of what it calls.
//
//go:noinline
func fragile(panics bool) (result int) {
	defer func() {
		if recover() != nil {
			result = -1
		}
	}()
	return throwing(panics)
}

// A panic goes through it.
//
//go:noinline
func throwing(panics bool) int {
	if panics {
		throwingPanics.Add(1)
		panic("thrown")
	}
	if deep(3, &[16]int{4: 4}) != 4 {
		return 0
	}
	return 1
}

// Another goroutine's turn, perhaps on another thread.
//
//go:noinline
func yielding(channel chan int) int {
	runtime.Gosched()
	return <-channel
}

// Results in all registers that there are for that.
//
//go:noinline
func many(a int, f float64) (int, int, int, int, int, int, int, int, int, float64, float64) {
	if a%3 == 0 {
		return a, a, a, a, a, a, a, a, a, f, f
	}
	return a + 1, a + 2, a + 3, a + 4, a + 5, a + 6, a + 7, a + 8, a + 9, f + 1, f + 2
}

const key, offset = 0x123456789a, 0x7654321

// Called where stacks have hardly any room: at each depth that goroutines reach before their stack grows.
//
//go:nosplit
//go:noinline
func cramped(a int) int {
	return (a ^ key) + offset
}

//go:noinline
func descend(levels int) int {
	if levels == 0 {
		return ((cramped(0) - offset) ^ key) + 1
	}
	return descend(levels-1) + ((cramped(levels) - offset) ^ key) - levels + 1
}

func worker() {
	for i := 0; i < rounds; i++ {
		var room [16]int
		room[(i*20+1)%16] = i*20 + 1
		check("deep", deep(i*20, &room) == i*20+1)
		deepReturns.Add(int64(i*20 + 1))
		// Small stacks side by side, of which none may write to another's.
		var small sync.WaitGroup
		for j := 0; j < 20; j++ {
			small.Add(1)
			go func() {
				defer small.Done()
				check("descend", descend(j*3) == j*3+1)
				crampedReturns.Add(int64(j*3 + 1))
			}()
		}
		small.Wait()

		panics := i%2 == 0
		result := fragile(panics)
		fragileReturns.Add(1)
		if panics {
			check("recovered", result == -1)
		} else {
			check("returned", result == 1)
			throwingReturns.Add(1)
			deepReturns.Add(4)
		}

		channel := make(chan int)
		go func() { channel <- i }()
		check("yielding", yielding(channel) == i)
		yieldingReturns.Add(1)

		one, two, three, four, five, six, seven, eight, nine, f, g := many(i, float64(i))
		sum := one + two + three + four + five + six + seven + eight + nine
		if i%3 == 0 {
			check("many", sum == 9*i && f == float64(i) && g == float64(i))
		} else {
			check("many", sum == 9*i+45 && f == float64(i)+1 && g == float64(i)+2)
		}
		manyReturns.Add(1)
	}
}

func main() {
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadString('\n')
	var stop atomic.Bool
	var workers sync.WaitGroup
	go func() {
		for !stop.Load() {
			runtime.GC()
		}
	}()
	for i := 0; i < goroutines; i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			worker()
		}()
	}
	workers.Wait()
	stop.Store(true)
	fmt.Println(deepReturns.Load(), fragileReturns.Load(), throwingReturns.Load(), throwingPanics.Load(),
		yieldingReturns.Load(), manyReturns.Load(), crampedReturns.Load())
	if faults.Load() != 0 {
		os.Exit(1)
	}
}
