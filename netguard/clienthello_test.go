package netguard

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"
)

// helloBytes is the ClientHello that Go's own client sends for cfg.
func helloBytes(t testing.TB, cfg *tls.Config) []byte {
	t.Helper()
	client, server := net.Pipe()
	defer func() { _ = server.Close() }()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Client(client, cfg).Handshake() // fails: nobody answers
		_ = client.Close()
	}()
	buf := make([]byte, 64<<10)
	n, err := server.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_ = server.Close()
	<-done
	return buf[:n]
}

func plainHello(t testing.TB, name string) []byte {
	t.Helper()
	return helloBytes(t, &tls.Config{ServerName: name, InsecureSkipVerify: true})
}

// helloSpec builds hellos that no TLS library would send.
type helloSpec struct {
	names      []string // one host_name each; nil leaves the extension out
	nameType   byte
	extensions [][2]any // kind int, data []byte; after server_name
	records    int      // over how many records; 0 is 1
	tail       []byte   // after the message, in the last record
	noExt      bool
}

func (s helloSpec) bytes() []byte {
	body := []byte{3, 3}
	body = append(body, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 1, 1, 0)
	var ext []byte
	add := func(kind int, data []byte) {
		ext = binary.BigEndian.AppendUint16(ext, uint16(kind))
		ext = binary.BigEndian.AppendUint16(ext, uint16(len(data)))
		ext = append(ext, data...)
	}
	if s.names != nil {
		var list []byte
		for _, n := range s.names {
			list = append(list, s.nameType)
			list = binary.BigEndian.AppendUint16(list, uint16(len(n)))
			list = append(list, n...)
		}
		add(tlsExtServerName, append(binary.BigEndian.AppendUint16(nil, uint16(len(list))), list...))
	}
	for _, e := range s.extensions {
		add(e[0].(int), e[1].([]byte))
	}
	if !s.noExt {
		body = binary.BigEndian.AppendUint16(body, uint16(len(ext)))
		body = append(body, ext...)
	}
	msg := append([]byte{tlsMsgClientHello, 0, byte(len(body) >> 8), byte(len(body))}, body...)
	msg = append(msg, s.tail...)
	return splitRecords(msg, max(s.records, 1))
}

// splitRecords spreads a handshake message over n records.
func splitRecords(msg []byte, n int) (out []byte) {
	step := (len(msg) + n - 1) / n
	for len(msg) > 0 {
		k := min(step, len(msg))
		out = append(out, tlsHandshake, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(k))
		out = append(out, msg[:k]...)
		msg = msg[k:]
	}
	return out
}

func TestParseClientHello(t *testing.T) {
	ech := [2]any{tlsExtECH, []byte{0, 0, 1, 0, 1, 7, 0, 0, 0, 0}}
	tests := []struct {
		name string
		in   []byte
		want clientHello
		err  error
	}{
		{"go client", plainHello(t, "api.example.com"), clientHello{hasSNI: true, serverName: "api.example.com"}, nil},
		{"go client to a literal sends no name", plainHello(t, "192.0.2.1"), clientHello{}, nil},
		{"no extensions at all", helloSpec{noExt: true}.bytes(), clientHello{}, nil},
		{"case kept", helloSpec{names: []string{"API.Example.Com"}}.bytes(), clientHello{hasSNI: true, serverName: "API.Example.Com"}, nil},
		{"three records", helloSpec{names: []string{"a.example"}, records: 3}.bytes(), clientHello{hasSNI: true, serverName: "a.example"}, nil},
		{"first record holds one byte", helloSpec{names: []string{"a.example"}, records: 60}.bytes(), clientHello{hasSNI: true, serverName: "a.example"}, nil},
		{"ech", helloSpec{names: []string{"a.example"}, extensions: [][2]any{ech}}.bytes(), clientHello{hasSNI: true, serverName: "a.example", ech: true}, nil},
		{"old encrypted sni", helloSpec{extensions: [][2]any{{tlsExtESNI, []byte{1}}}}.bytes(), clientHello{ech: true}, nil},
		{"too many records", helloSpec{names: []string{"a.example"}, records: 70}.bytes(), clientHello{}, errHelloTooLarge},
		{"two names", helloSpec{names: []string{"a.example", "b.example"}}.bytes(), clientHello{}, errHelloNames},
		{"empty name", helloSpec{names: []string{""}}.bytes(), clientHello{}, errHelloNames},
		{"unknown name type", helloSpec{names: []string{"a.example"}, nameType: 1}.bytes(), clientHello{}, errHelloNames},
		{"empty list", helloSpec{names: []string{}}.bytes(), clientHello{}, errHelloMalformed},
		{"server_name twice", helloSpec{names: []string{"a.example"}, extensions: [][2]any{{tlsExtServerName, []byte{0, 4, 0, 0, 1, 'b'}}}}.bytes(), clientHello{}, errHelloMalformed},
		{"second message in the record", helloSpec{names: []string{"a.example"}, tail: []byte{1, 0, 0, 0}}.bytes(), clientHello{}, errHelloMalformed},
		{"http", []byte("GET / HTTP/1.1\r\n"), clientHello{}, errHelloNotTLS},
		{"sslv2", []byte{0x80, 0x2e, 1, 3, 1}, clientHello{}, errHelloNotTLS},
		{"other record type", []byte{23, 3, 3, 0, 1, 0}, clientHello{}, errHelloNotTLS},
		{"other message", []byte{22, 3, 3, 0, 4, 2, 0, 0, 0}, clientHello{}, errHelloNotTLS},
		{"empty record", []byte{22, 3, 3, 0, 0}, clientHello{}, errHelloMalformed},
		{"oversized record", []byte{22, 3, 3, 0x40, 1}, clientHello{}, errHelloMalformed},
		{"oversized message", []byte{22, 3, 3, 0, 4, 1, 1, 0, 0}, clientHello{}, errHelloTooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, n, err := parseClientHello(tt.in)
			if !errors.Is(err, tt.err) || got != tt.want {
				t.Fatalf("got %+v, %v; want %+v, %v", got, err, tt.want, tt.err)
			}
			if err == nil && n != len(tt.in) {
				t.Errorf("took %d of %d bytes", n, len(tt.in))
			}
		})
	}
}

// Every proper prefix of an honest hello asks for more; none is a verdict.
func TestParseClientHelloPrefixes(t *testing.T) {
	whole := helloSpec{names: []string{"a.example"}, records: 3}.bytes()
	for i := range whole {
		if _, _, err := parseClientHello(whole[:i]); !errors.Is(err, errIncomplete) {
			t.Fatalf("after %d bytes: %v", i, err)
		}
	}
}

// serverSees is the name that Go's own server reads from the same bytes, where
// it takes them for a ClientHello.
func serverSees(t *testing.T, b []byte) (name string, ok bool) {
	cfg := &tls.Config{GetConfigForClient: func(chi *tls.ClientHelloInfo) (*tls.Config, error) {
		name, ok = chi.ServerName, true
		return nil, errors.New("seen enough")
	}}
	if err := tls.Server(&readConn{Reader: bytes.NewReader(b)}, cfg).HandshakeContext(t.Context()); err == nil {
		t.Fatal("a handshake without a client")
	}
	return name, ok
}

// readConn is a connection whose peer sent some bytes and listens to nothing.
type readConn struct {
	net.Conn
	io.Reader
}

func (c *readConn) Read(b []byte) (int, error)       { return c.Reader.Read(b) }
func (c *readConn) Write(b []byte) (int, error)      { return len(b), nil }
func (c *readConn) Close() error                     { return nil }
func (c *readConn) SetDeadline(time.Time) error      { return nil }
func (c *readConn) SetWriteDeadline(time.Time) error { return nil }

func FuzzClientHello(f *testing.F) {
	f.Add(helloSpec{names: []string{"a.example"}, records: 3}.bytes())
	f.Add(helloSpec{names: []string{"a.example", "b.example"}}.bytes())
	f.Add(helloSpec{extensions: [][2]any{{tlsExtECH, []byte{0}}}}.bytes())
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		hello, n, err := parseClientHello(b)
		if err != nil {
			if hello != (clientHello{}) || n != 0 {
				t.Fatal("an error with a result")
			}
			if errors.Is(err, errIncomplete) && len(b) >= maxHelloWire+tlsRecordHeader+tlsRecordMaxPayload {
				t.Fatalf("asks for more after %d bytes", len(b))
			}
			return
		}
		if n > len(b) || n > maxHelloWire || hello.hasSNI != (hello.serverName != "") {
			t.Fatalf("took %d of %d: %+v", n, len(b), hello)
		}
		if name, ok := serverSees(t, b[:n]); ok && name != hello.serverName {
			t.Fatalf("a server sees %q, the gateway %q", name, hello.serverName)
		}
		// Bytes behind the hello change nothing, and neither do single bytes.
		again, m, err := parseClientHello(append(b[:n:n], 0xff))
		if err != nil || m != n || again != hello {
			t.Fatalf("with a tail: %+v, %d, %v", again, m, err)
		}
		if _, _, err := parseClientHello(b[:n-1]); !errors.Is(err, errIncomplete) {
			t.Fatalf("one byte short: %v", err)
		}
	})
}
