// Command guest is what the engine's tests run inside a real container: it
// does what each line of stdin says and answers with one line.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		op, arg, _ := strings.Cut(in.Text(), " ")
		fmt.Println(do(op, arg))
	}
}

func do(op, arg string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch op {
	case "echo":
		return arg
	case "uid":
		return fmt.Sprint(os.Getuid())
	case "read":
		b, err := os.ReadFile(arg)
		if err != nil {
			return "error: " + err.Error()
		}
		return string(b)
	case "write":
		if err := os.WriteFile(arg, []byte("written"), 0o644); err != nil {
			return "error: " + err.Error()
		}
		return "ok"
	case "lookup":
		addrs, err := net.DefaultResolver.LookupHost(ctx, arg)
		if err != nil {
			return "error: " + err.Error()
		}
		return strings.Join(addrs, " ")
	case "tcp":
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", arg)
		if errors.Is(err, syscall.ECONNREFUSED) {
			return "refused"
		}
		if err != nil {
			return "error: " + err.Error()
		}
		defer func() { _ = c.Close() }()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return "error: " + err.Error()
		}
		return strings.TrimSpace(line)
	}
	return "error: what?"
}
