package streamhttp

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// oneConn is a listener with a single connection.
type oneConn struct {
	once sync.Once
	conn net.Conn
	done chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	var c net.Conn
	l.once.Do(func() { c = l.conn })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}
func (l *oneConn) Close() error   { close(l.done); return nil }
func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestAStalledBodyIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		got := make(chan error, 1)
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, err := ReadBody(w, r, 1<<20)
			got <- err
			w.WriteHeader(http.StatusBadRequest)
		}), ReadHeaderTimeout: time.Minute}
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(&oneConn{conn: server, done: make(chan struct{})}) }()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		fmt.Fprint(client, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf of it")
		began := time.Now()
		if err := <-got; err == nil {
			t.Error("half a body was taken for a whole one")
		}
		if d := time.Since(began); d < bodyTime || d > bodyTime+time.Second {
			t.Errorf("given up after %s, want %s", d, bodyTime)
		}
		_ = client.Close()
		_ = srv.Close()
		<-served
	})
}

func TestASilentClientKeepsItsCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, server := net.Pipe()
		srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := ReadBody(w, r, 1<<20); err != nil {
				t.Error(err)
			}
			select {
			case <-time.After(10 * bodyTime): // a long call
			case <-r.Context().Done():
				t.Error("the call was cancelled while its client waited")
			}
		}), ReadHeaderTimeout: time.Minute}
		served := make(chan struct{})
		go func() { defer close(served); _ = srv.Serve(&oneConn{conn: server, done: make(chan struct{})}) }()
		go fmt.Fprint(client, "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
		res, err := http.ReadResponse(bufio.NewReader(client), nil)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Errorf("%v, %v", res, err)
		}
		_ = client.Close()
		_ = srv.Close()
		<-served
	})
}
