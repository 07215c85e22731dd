// SPDX-License-Identifier: MIT OR Apache-2.0

// Many goroutines that make system calls, on stacks that move, under garbage collection and preemption at any instruction.
// Ends with 0 only if every result was right. What its own run-time system calls nobody knows; what it makes itself is:
// getppid, getpgid, mkdirat, renameat, unlinkat, and children.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
)

var faults atomic.Int32

func check(what string, right bool) {
	if !right {
		faults.Add(1)
		fmt.Fprintln(os.Stderr, "not so:", what)
	}
}

// A deep stack, grown anew, with a call at its end.
//
//go:noinline
func deep(levels int) uintptr {
	var room [128]byte
	if levels == 0 {
		result, _, errno := syscall.RawSyscall6(syscall.SYS_GETPPID, 1, 2, 3, 4, 5, 6)
		if errno != 0 {
			return 0
		}
		return result
	}
	room[levels%128] = byte(levels)
	result := deep(levels - 1)
	if room[levels%128] != byte(levels) {
		return 0
	}
	return result
}

func worker(number int, directory string) {
	parent := uintptr(os.Getppid())
	for i := 0; i < 200; i++ {
		check("deep", deep(i%64) == parent)
		group, _, errno := syscall.Syscall6(syscall.SYS_GETPGID, 0, 2, 3, 4, 5, 6)
		check("getpgid", errno == 0 && group == uintptr(syscall.Getpgrp()))
		_, _, errno = syscall.RawSyscall(600, 1, 2, 3)
		check("no such call", errno == syscall.ENOSYS)
		_ = bytes.Repeat([]byte{1}, 1<<14)
	}
	name := filepath.Join(directory, fmt.Sprint("of-", number))
	for i := 0; i < 10; i++ {
		check("mkdir", os.Mkdir(name, 0o700) == nil)
		file := filepath.Join(name, "file")
		text := []byte(fmt.Sprint("text ", number, i))
		check("write", os.WriteFile(file, text, 0o600) == nil)
		read, err := os.ReadFile(file)
		check("read", err == nil && bytes.Equal(read, text))
		check("rename", os.Rename(file, file+"2") == nil)
		_, err = os.Stat(file)
		check("stat", os.IsNotExist(err))
		check("remove", os.Remove(file+"2") == nil)
		check("rmdir", syscall.Rmdir(name) == nil)
	}
}

func spin(stop *atomic.Bool) {
	// No call in it: only a signal takes the processor away.
	for sum := 0; !stop.Load(); {
		for i := 0; i < 1000000; i++ {
			sum += i
		}
	}
}

func main() {
	directory, err := os.MkdirTemp("", "ring3-many")
	check("temporary directory", err == nil)
	var stop atomic.Bool
	var workers sync.WaitGroup
	go spin(&stop)
	go func() {
		for !stop.Load() {
			runtime.GC()
		}
	}()
	for number := 0; number < 50; number++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			worker(number, directory)
		}()
	}
	for i := 0; i < 10; i++ {
		output, err := exec.Command("/bin/sh", "-c", "echo out; exit 3").Output()
		exit, ok := err.(*exec.ExitError)
		check("child", ok && exit.ExitCode() == 3 && string(output) == "out\n")
	}
	workers.Wait()
	stop.Store(true)
	check("directory is empty", os.Remove(directory) == nil)
	if faults.Load() != 0 {
		os.Exit(1)
	}
}
