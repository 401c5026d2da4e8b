// Command kit is the guest of this package's tests: it does what it is told,
// one JSON command a line on stdin, and answers each with one line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type command struct {
	Op   string
	Args []string
}

type answer struct {
	Out, Err string
	Ms       int64
}

func main() {
	signal.Ignore(syscall.SIGXFSZ) // as Node and Python do
	if len(os.Args) > 1 {
		os.Exit(direct(os.Args[1:]))
	}
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			os.Exit(3)
		}
		began := time.Now()
		o, err := do(c.Op, c.Args)
		a := answer{Out: o, Ms: time.Since(began).Milliseconds()}
		if err != nil {
			a.Err = err.Error()
			var errno syscall.Errno
			if errors.As(err, &errno) {
				a.Err = errno.Error()
			}
		}
		if err := out.Encode(a); err != nil {
			return
		}
	}
}

// direct is what the kit does when started with arguments.
func direct(args []string) int {
	switch args[0] {
	case "exit":
		n, _ := strconv.Atoi(args[1])
		return n
	case "cat":
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			return 1
		}
		fmt.Fprintln(os.Stderr, "end of input")
		return 0
	case "sleep":
		time.Sleep(time.Hour)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	case "orphan": // leaves a child behind that has another parent
		cmd := exec.Command("/kit", "sleep")
		if err := cmd.Start(); err != nil {
			return 1
		}
		fmt.Println(cmd.Process.Pid)
	case "leave": // a grandchild in a session of its own outlives its parents
		cmd := exec.Command("/proc/self/exe", "leave child")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Run(); err != nil {
			return 1
		}
		fmt.Println("left")
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "leave child":
		cmd := exec.Command("/proc/self/exe", "stubborn")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return 1
		}
	case "crash":
		panic("on purpose")
	case "ids":
		fmt.Println(os.Geteuid())
	case "scan":
		return scan(args[1])
	case "flood":
		flood(args[1])
	case "noop":
	}
	return 0
}

func do(op string, args []string) (string, error) {
	switch op {
	case "ids":
		return fmt.Sprintf("%d %d %d %d", os.Getuid(), os.Geteuid(), os.Getgid(), os.Getpid()), nil
	case "env":
		return strings.Join(os.Environ(), "\n"), nil
	case "cwd":
		return os.Getwd()
	case "exit":
		n, _ := strconv.Atoi(args[0])
		os.Exit(n)
	case "kill":
		n, _ := strconv.Atoi(args[0])
		return "", syscall.Kill(os.Getpid(), syscall.Signal(n))
	case "eat": // memory, in MiB
		n, _ := strconv.Atoi(args[0])
		for range n {
			b := make([]byte, 1<<20)
			for i := 0; i < len(b); i += 4096 {
				b[i] = 1
			}
			kept = append(kept, b)
		}
		return "", nil
	case "fork":
		n, _ := strconv.Atoi(args[0])
		for i := range n {
			cmd := exec.Command("/kit", "sleep")
			if err := cmd.Start(); err != nil {
				return strconv.Itoa(i), err
			}
		}
		return strconv.Itoa(n), nil
	case "open": // the own program, so many times
		n, _ := strconv.Atoi(args[0])
		var files []*os.File
		defer func() {
			for _, f := range files {
				f.Close()
			}
		}()
		for i := range n {
			f, err := os.Open("/kit")
			if err != nil {
				return strconv.Itoa(i), err
			}
			files = append(files, f)
		}
		return strconv.Itoa(n), nil
	case "run":
		b, err := exec.Command(args[0], args[1:]...).CombinedOutput()
		return string(b), err
	case "uname":
		var u syscall.Utsname
		if err := syscall.Uname(&u); err != nil {
			return "", err
		}
		b, err := os.ReadFile("/proc/version")
		return text(u.Release) + "\n" + text(u.Nodename) + "\n" + string(b), err
	}
	if o, ok, err := files(op, args); ok {
		return o, err
	}
	if o, ok, err := kernel(op, args); ok {
		return o, err
	}
	if f := attacks[op]; f != nil {
		return f(args)
	}
	return network(op, args)
}

var kept [][]byte

func text(u [65]int8) string {
	var b []byte
	for _, c := range u {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

func network(op string, args []string) (string, error) {
	const wait = 5 * time.Second
	switch op {
	case "dial":
		c, err := net.DialTimeout(args[0], args[1], wait)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(wait))
		b, err := io.ReadAll(c)
		return string(b), err
	case "ask": // one datagram, one answer
		c, err := net.DialTimeout(args[0], args[1], wait)
		if err != nil {
			return "", err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(wait))
		if _, err := c.Write([]byte(args[2])); err != nil {
			return "", err
		}
		b := make([]byte, 1500)
		n, err := c.Read(b)
		return string(b[:n]), err
	case "loopback": // talks to itself
		kind := "tcp"
		if strings.HasPrefix(args[0], "/") {
			kind = "unix"
		}
		l, err := net.Listen(kind, args[0])
		if err != nil {
			return "", err
		}
		defer l.Close()
		go func() {
			c, err := l.Accept()
			if err == nil {
				fmt.Fprint(c, "self")
				c.Close()
			}
		}()
		return network("dial", []string{kind, l.Addr().String()})
	case "interfaces":
		ifs, err := net.Interfaces()
		var names []string
		for _, i := range ifs {
			names = append(names, i.Name)
		}
		return strings.Join(names, " "), err
	}
	return "", fmt.Errorf("unknown command %q", op)
}
