// SPDX-License-Identifier: MIT OR Apache-2.0
// A web server with TLS for `cargo xtask bench workloads`: server PORT, beside certificate.pem and key.pem.
package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
)

var text = []byte(strings.Repeat("x", 1024))

//go:noinline
func handle(writer http.ResponseWriter, request *http.Request) {
	writer.Write(text)
}

func main() {
	http.HandleFunc("/", handle)
	fmt.Println(http.ListenAndServeTLS("127.0.0.1:"+os.Args[1], "certificate.pem", "key.pem", nil))
	os.Exit(1)
}
