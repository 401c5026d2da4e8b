// Command guest is what the tests of package wasm run: one program whose first
// argument says what to do.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sandboxd/sandboxd/sandbox/sandboxtest/wasinet"
)

var commands = map[string]func(args []string) error{
	"echo": func([]string) error { _, err := io.Copy(os.Stdout, os.Stdin); return err },
	"exit": func(a []string) error { n, _ := strconv.Atoi(a[0]); os.Exit(n); return nil },
	"about": func([]string) error {
		wd, _ := os.Getwd()
		return json.NewEncoder(os.Stdout).Encode(map[string]any{"args": os.Args, "env": os.Environ(), "wd": wd})
	},
	"spin": spin,
	"hold": func(a []string) error {
		if err := os.WriteFile(a[0], []byte("secret"), 0o600); err != nil {
			return err
		}
		ready()
		time.Sleep(time.Hour)
		return nil
	},
	"sleep":    func([]string) error { ready(); time.Sleep(time.Hour); return nil },
	"block":    block,
	"flood":    flood,
	"alloc":    alloc,
	"deep":     func([]string) error { ready(); fmt.Println(deep(1)); return nil },
	"timers":   timers,
	"stderr":   func([]string) error { fmt.Fprintln(os.Stderr, "to stderr"); return nil },
	"panic":    func([]string) error { panic("on purpose") },
	"get":      get,
	"dial":     dialOnly,
	"pingpong": pingpong,
	"half":     halfClose,
	"many":     many,
	"fs":       fsCommands,
	"fds":      guessDescriptors,
	"reuse":    reuseClosed,
	"forge":    forge,
	"fuzz":     fuzzHost,
	"poll":     pollKinds,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "unknown command")
		os.Exit(64)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

func ready() { fmt.Println("ready") }

func spin([]string) error {
	ready()
	for x := uint64(1); ; x = x*6364136223846793005 + 1 {
		if x == 0 {
			fmt.Println("never")
		}
	}
}

// block ignores the end of its stdin.
func block([]string) error {
	ready()
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		return err
	}
	time.Sleep(time.Hour)
	return nil
}

func flood([]string) error {
	ready()
	line := []byte(strings.Repeat("x", 1<<16) + "\n")
	for {
		if _, err := os.Stdout.Write(line); err != nil {
			return err
		}
	}
}

func alloc([]string) error {
	ready()
	var keep [][]byte
	for {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
		if len(keep) < 0 {
			return nil
		}
	}
}

func deep(n int) int {
	var pad [64]int
	pad[n%64] = n
	return deep(n+1) + pad[(n+1)%64]
}

// timers shows that timers fire while a goroutine waits for stdin.
func timers([]string) error {
	lines := make(chan string)
	go func() {
		s := bufio.NewScanner(os.Stdin)
		for s.Scan() {
			lines <- s.Text()
		}
		close(lines)
	}()
	for range 20 {
		select {
		case <-time.After(2 * time.Millisecond):
		case l := <-lines:
			return fmt.Errorf("a line before its time: %q", l)
		}
	}
	fmt.Println("ticked")
	fmt.Println("line:", <-lines)
	return nil
}

func get(args []string) error {
	client := &http.Client{Transport: wasinet.Transport(), Timeout: 20 * time.Second}
	for _, u := range args {
		res, err := client.Get(u)
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		n, err := io.Copy(io.Discard, io.TeeReader(res.Body, &first))
		res.Body.Close()
		fmt.Printf("status=%d bytes=%d err=%v body=%q\n", res.StatusCode, n, err, first.String())
		first.Reset()
	}
	return nil
}

// first keeps the beginning of what is written to it.
var first head

type head struct{ strings.Builder }

func (h *head) Write(b []byte) (int, error) {
	if room := 200 - h.Len(); room > 0 {
		h.Builder.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func dialOnly(args []string) error {
	for _, a := range args {
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		began := time.Now()
		c, err := wasinet.DialContext(ctx, "tcp", a)
		cancel()
		if err != nil {
			fmt.Printf("%s: error: %v (%v)\n", a, err, time.Since(began) < 200*time.Millisecond)
			continue
		}
		c.Close()
		fmt.Printf("%s: ok\n", a)
	}
	return nil
}

func dial(address string) (*wasinet.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	c, err := wasinet.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*wasinet.Conn), nil
}

// pingpong reads with a deadline first, then exchanges lines.
func pingpong(args []string) error {
	c, err := dial(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !os.IsTimeout(err) {
		return fmt.Errorf("no timeout but %v", err)
	}
	_ = c.SetReadDeadline(time.Time{})
	r := bufio.NewReader(c)
	for i := range 100 {
		fmt.Fprintf(c, "ping %d\n", i)
		l, err := r.ReadString('\n')
		if err != nil || l != fmt.Sprintf("ping %d\n", i) {
			return fmt.Errorf("round %d: %q, %v", i, l, err)
		}
	}
	fmt.Println("remote", c.RemoteAddr())
	fmt.Println("done")
	return nil
}

// halfClose sends, closes its side and reads the rest.
func halfClose(args []string) error {
	c, err := dial(args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	big := strings.Repeat("0123456789abcdef", 1<<16) // 1 MiB, more than all buffers
	if _, err := io.WriteString(c, big); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	fmt.Printf("sent=%d got=%s err=%v\n", len(big), got, err)
	return nil
}

// many opens a number of connections at once and uses each.
func many(args []string) error {
	n, _ := strconv.Atoi(args[1])
	errs := make(chan error, n)
	hold := make(chan struct{})
	for range n {
		go func() {
			c, err := dial(args[0])
			if err == nil {
				fmt.Fprintln(c, "hello")
				_, err = bufio.NewReader(c).ReadString('\n')
			}
			errs <- err
			<-hold
		}()
	}
	ok, bad := 0, map[string]int{}
	for range n {
		if err := <-errs; err != nil {
			bad[err.Error()]++
		} else {
			ok++
		}
	}
	fmt.Printf("ok=%d errors=%v\n", ok, bad)
	return nil
}
