// Package guest is the program that the conformance suite runs inside a
// sandbox. It is a library so that the same code is a Linux program, a
// WebAssembly module and a goroutine of a fake. It may never be given anything
// to do but by its arguments and its input.
package guest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// Process is what a guest has of its sandbox.
type Process struct {
	Args, Env []string // Args[1] is the command
	Dir       string
	In        io.ReadCloser
	Out, Err  io.WriteCloser
}

// About is the answer to the command about: what the guest was given.
type About struct {
	Args, Env []string
	Dir       string
}

// EndOfInput is what echo writes to its standard error when its input ends.
const EndOfInput = "end of input\n"

// The exit statuses of the guest's own.
const (
	statusFailed = 1
	statusUsage  = 64
	// StatusTerm is term's, when it was asked to end.
	StatusTerm = 7
)

var commands = map[string]func(ctx context.Context, p Process) error{
	"echo": echo, "exit": exit, "about": about, "output": output, "flood": flood, "stubborn": stubborn,
	"closeout": closeOutput, "alloc": alloc, "serve": serve, "term": term, "kill": kill, "leave": leave, "sleep": stubborn,
}

// status is an error that is an exit status.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// Run runs one command to its end and returns its exit status. Where ctx can
// end, the guest does with it.
func Run(ctx context.Context, p Process) int {
	if len(p.Args) < 2 || commands[p.Args[1]] == nil {
		fmt.Fprintln(p.Err, "unknown command")
		return statusUsage
	}
	err := commands[p.Args[1]](ctx, p)
	var s status
	switch {
	case errors.As(err, &s):
		return int(s)
	case err != nil:
		fmt.Fprintln(p.Err, "error:", err)
		return statusFailed
	}
	return 0
}

func (p Process) number(i int) int {
	if len(p.Args) <= i+2 {
		return 0
	}
	n, err := strconv.Atoi(p.Args[i+2])
	if err != nil {
		return 0
	}
	return n
}

func ready(p Process) error { _, err := io.WriteString(p.Out, "ready\n"); return err }

func echo(_ context.Context, p Process) error {
	if _, err := io.Copy(p.Out, p.In); err != nil {
		return err
	}
	_, err := io.WriteString(p.Err, EndOfInput)
	return err
}

func exit(_ context.Context, p Process) error { return status(p.number(0)) }

func about(_ context.Context, p Process) error {
	return json.NewEncoder(p.Out).Encode(About{Args: p.Args, Env: p.Env, Dir: p.Dir})
}

// Pattern is n bytes in which a lost or doubled piece shows.
func Pattern(n int) []byte {
	b := make([]byte, 0, n+16)
	for i := 0; len(b) < n; i++ {
		b = append(strconv.AppendInt(b, int64(i), 16), ',')
	}
	return b[:n]
}

func output(_ context.Context, p Process) error {
	_, err := p.Out.Write(Pattern(p.number(0)))
	return err
}

func flood(ctx context.Context, p Process) error {
	b := []byte(strings.Repeat("x", 1<<16))
	to := p.Out
	if len(p.Args) > 2 && p.Args[2] == "err" {
		to = p.Err
	}
	for ctx.Err() == nil {
		if _, err := to.Write(b); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// stubborn heeds neither the end of its input nor a request to end.
func stubborn(ctx context.Context, p Process) error {
	if p.Args[1] == "stubborn" {
		ignoreTerm()
	}
	if err := ready(p); err != nil {
		return err
	}
	select {
	case <-time.After(time.Hour):
	case <-ctx.Done():
	}
	return ctx.Err()
}

// closeOutput closes its output and lives on until its input ends.
func closeOutput(_ context.Context, p Process) error {
	if err := ready(p); err != nil {
		return err
	}
	if err := p.Out.Close(); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, p.In)
	return err
}

func alloc(ctx context.Context, p Process) error {
	if err := ready(p); err != nil {
		return err
	}
	var keep [][]byte
	for ctx.Err() == nil {
		b := make([]byte, 1<<20)
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		keep = append(keep, b)
	}
	return fmt.Errorf("had %d MiB: %w", len(keep), ctx.Err())
}

// serve does what each line of its input says and answers with one line.
func serve(ctx context.Context, p Process) error {
	in := bufio.NewScanner(p.In)
	for in.Scan() {
		op, arg, _ := strings.Cut(in.Text(), " ")
		answer, err := do(ctx, op, arg)
		if err != nil {
			answer = "error: " + err.Error()
		}
		if _, err := io.WriteString(p.Out, strings.ReplaceAll(answer, "\n", " ")+"\n"); err != nil {
			return err
		}
	}
	return in.Err()
}

func do(ctx context.Context, op, arg string) (string, error) {
	switch op {
	case "echo":
		return arg, nil
	case "read":
		b, err := os.ReadFile(arg)
		return string(b), err
	case "write":
		return "ok", os.WriteFile(arg, []byte("written by the guest"), 0o644) //nolint:gosec // the suite reads it on the host
	case "dial":
		ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		return "connected", dial(ctx, arg)
	case "fork":
		n, err := strconv.Atoi(arg)
		if err != nil {
			return "", err
		}
		return fork(ctx, n)
	}
	return "", errors.New("unknown operation")
}
