// Command client is an ordinary program that uses the network as servers do,
// with the standard library and nothing else. It says what came of each thing
// it tried as a notification, since only those lines pass on stdout.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	switch os.Args[1] {
	case "check":
		for _, c := range checks {
			result := "ok"
			if err := c.do(); err != nil {
				result = err.Error()
			}
			say(c.name + ": " + result)
		}
	case "idle": // as a server that waits for a signal and its client
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM, os.Interrupt)
		_, _ = io.Copy(io.Discard, os.Stdin)
	case "get":
		if err := download(os.Args[2], os.Args[3:]...); err != nil {
			say(err.Error())
			os.Exit(1)
		}
	}
}

func say(result string) {
	b, err := json.Marshal(map[string]string{"jsonrpc": "2.0", "method": "result", "params": result})
	if err == nil {
		fmt.Printf("%s\n", b)
	}
}

// download fetches a URL twice, the second time over a warm connection. at is
// where to dial, for want of a resolver.
func download(url string, at ...string) error {
	client := &http.Client{}
	if len(at) > 0 {
		client.Transport = &http.Transport{ForceAttemptHTTP2: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at[0])
		}}
	}
	for range 2 {
		begin := time.Now()
		res, err := client.Get(url) //nolint:noctx // a whole program
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, res.Body)
		if err != nil {
			return err
		}
		_ = res.Body.Close()
		say(fmt.Sprintf("%s %d %.6f", res.Proto, n, time.Since(begin).Seconds()))
	}
	return nil
}

const raw = "raw.example.com:2222"

var checks = []struct {
	name string
	do   func() error
}{
	{"https", func() error { return get("https://allowed.example.com/", "HTTP/2.0", "the allowed host") }},
	{"time zones", func() error {
		_, err := time.LoadLocation("Europe/Berlin")
		return err
	}},
	{"signals", func() error {
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		signal.Stop(c) // waits for a delivery that may be under way
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		stop()
		if ctx.Err() == nil {
			return errors.New("NotifyContext did not end")
		}
		return nil
	}},
	{"programs", func() error {
		if err := exec.Command("true").Run(); err == nil { //nolint:noctx // fails at once
			return errors.New("a program ran")
		}
		return nil
	}},
	{"listener inside", func() error {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "from inside") }))
		defer srv.Close()
		if err := get(srv.URL, "HTTP/1.1", "from inside"); err != nil {
			return err
		}
		return get(strings.Replace(srv.URL, "127.0.0.1", "localhost", 1), "HTTP/1.1", "from inside")
	}},
	{"both directions", bothDirections},
	{"deadline", deadline},
	{"many", many},
	{"control", control},
	{"context", func() error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := (&net.Dialer{}).DialContext(ctx, "tcp", raw); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("got %v", err)
		}
		var timeout net.Error
		if _, err := net.DialTimeout("tcp", raw, 1); !errors.As(err, &timeout) || !timeout.Timeout() {
			return fmt.Errorf("got %v", err)
		}
		return nil
	}},
	{"refused name", func() error {
		_, err := net.Dial("tcp", "other.example.com:443") //nolint:noctx // a whole program
		var dns *net.DNSError
		if !errors.Is(err, syscall.ECONNREFUSED) && (!errors.As(err, &dns) || !dns.IsNotFound) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	}},
	{"refused port", func() error { return refused("tcp", "raw.example.com:2223", syscall.ECONNREFUSED) }},
	{"refused address", func() error { return refused("tcp", "169.254.169.254:80", syscall.ECONNREFUSED) }},
	{"datagrams", func() error { return refused("udp", "151.101.1.6:53", syscall.EPROTONOSUPPORT) }},
	{"other records", func() error {
		begin := time.Now()
		if _, _, err := net.LookupSRV("x", "tcp", "raw.example.com"); err == nil || time.Since(begin) > 3*time.Second {
			return fmt.Errorf("got %v after %s", err, time.Since(begin))
		}
		_, err := net.LookupTXT("raw.example.com")
		return wanted(err)
	}},
	{"local endpoint", func() error {
		c, err := net.Dial("tcp", "localhost:5432") //nolint:noctx // a whole program
		if err != nil {
			return err
		}
		return c.Close()
	}},
	{"local port", func() error { return refused("tcp", "localhost:5433", syscall.ECONNREFUSED) }},
}

func wanted(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return nil
}

func refused(network, address string, errno syscall.Errno) error {
	c, err := net.Dial(network, address) //nolint:noctx // a whole program
	if err == nil {
		return errors.Join(errors.New("connected"), c.Close())
	}
	if !errors.Is(err, errno) {
		return fmt.Errorf("got %w", err)
	}
	return nil
}

func get(url, proto, want string) error {
	res, err := (&http.Client{}).Get(url) //nolint:noctx // a whole program
	if err != nil {
		return err
	}
	defer res.Body.Close() //nolint:errcheck // only read from
	b, err := io.ReadAll(res.Body)
	if err == nil && (res.Proto != proto || !strings.Contains(string(b), want)) {
		err = fmt.Errorf("%s and %q", res.Proto, b)
	}
	return err
}

// greeted dials the server that speaks first and sends everything back.
func greeted() (*net.TCPConn, error) {
	c, err := net.Dial("tcp", raw) //nolint:noctx // a whole program
	if err != nil {
		return nil, err
	}
	buf := make([]byte, len("raw hello\n"))
	if _, err := io.ReadFull(c, buf); err != nil || string(buf) != "raw hello\n" {
		return nil, errors.Join(fmt.Errorf("greeted with %q: %w", buf, err), c.Close())
	}
	return c.(*net.TCPConn), nil
}

func bothDirections() error {
	c, err := greeted()
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // read to its end
	if a, ok := c.RemoteAddr().(*net.TCPAddr); !ok || a.Port != 2222 || c.LocalAddr() == nil {
		return fmt.Errorf("between %v and %v", c.LocalAddr(), c.RemoteAddr())
	}
	if err := errors.Join(c.SetNoDelay(true), c.SetKeepAlive(true), c.SetReadBuffer(1<<16)); err != nil {
		return err
	}
	const size = 1 << 20
	go func() {
		_, _ = c.Write(make([]byte, size))
		_ = c.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, c); err != nil || n != size {
		return fmt.Errorf("%d bytes came back: %w", n, err)
	}
	return nil
}

func deadline() error {
	c, err := greeted()
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // the test is over
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		return err
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("got %v", err)
	}
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	if _, err := c.Write([]byte("x")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 1)) // the connection is still good
	return err
}

func many() error {
	var group sync.WaitGroup
	errs := make(chan error, 50)
	for range cap(errs) {
		group.Go(func() {
			c, err := greeted()
			if err == nil {
				err = c.Close()
			}
			errs <- err
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// control: a dialer's hook sees the socket before it connects, and can say no.
func control() error {
	no := errors.New("no")
	seen := ""
	d := net.Dialer{Control: func(network, address string, c syscall.RawConn) error {
		seen = network + " " + address
		return errors.Join(no, c.Control(func(uintptr) {}))
	}}
	if _, err := d.Dial("tcp", raw); !errors.Is(err, no) || !strings.HasPrefix(seen, "tcp4 ") || !strings.HasSuffix(seen, ":2222") { //nolint:noctx // a whole program
		return fmt.Errorf("saw %q, got %v", seen, err)
	}
	return nil
}
