//go:build linux

package lab

import (
	"context"
	"net"
	"net/http"
	"time"
)

// Dial connects from inside the namespace, to a literal address.
func (l *Lab) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var conn net.Conn
	err := l.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: 10 * time.Second}).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// HTTPClient speaks to servers inside the namespace. Its idle connections end
// with the test.
func (l *Lab) HTTPClient() *http.Client {
	tr := &http.Transport{DialContext: l.Dial}
	l.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}
