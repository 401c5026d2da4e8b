package gowasm

import (
	"bytes"
	"crypto/x509"
	_ "embed"
	"encoding/pem"
	"fmt"
	"io/fs"
	"strings"

	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/sandboxd/sandboxd/images"
)

// edit changes one place of a file of Go's standard library. The anchor is the
// text as it stands there: it must occur exactly once, else this Go is not one
// that the edit was written for.
type edit struct {
	file   string // below GOROOT/src
	anchor string
	with   string // replaces the anchor
}

// edits are all that an unmodified server needs changed. Each is as small as
// it can be; what they call is in the file that the overlay adds to net.
var edits = []edit{
	{
		"net/net_fake.go", "syscall.RawConn) error) (*netFD, error) {\n\tif raddr != nil && ctrlCtxFn != nil {",
		"syscall.RawConn) error) (*netFD, error) {\n\tif hostDials(raddr) {\n\t\treturn hostDial(ctx, net, family, raddr, ctrlCtxFn)\n\t}\n\tif raddr != nil && ctrlCtxFn != nil {",
	},
	after("net/lookup_unix.go", "func (r *Resolver) lookupHost(ctx context.Context, host string) (addrs []string, err error) {\n", "return hostLookupHost(host)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupIP(ctx context.Context, network, host string) (addrs []IPAddr, err error) {\n", "return hostLookupIP(network, host)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupCNAME(ctx context.Context, name string) (string, error) {\n", "return hostLookupCNAME(name)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupSRV(ctx context.Context, service, proto, name string) (string, []*SRV, error) {\n", "return \"\", nil, errHostOnlyAddresses(name)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupMX(ctx context.Context, name string) ([]*MX, error) {\n", "return nil, errHostOnlyAddresses(name)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupNS(ctx context.Context, name string) ([]*NS, error) {\n", "return nil, errHostOnlyAddresses(name)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupTXT(ctx context.Context, name string) ([]string, error) {\n", "return nil, errHostOnlyAddresses(name)"),
	after("net/lookup_unix.go", "func (r *Resolver) lookupAddr(ctx context.Context, addr string) ([]string, error) {\n", "return nil, errHostOnlyAddresses(addr)"),
	// Hints about a connection that is the host's: heard, and not acted upon.
	{"net/sockopt_fake.go", "\t\treturn fd.fakeNetFD.setReadBuffer(bytes)\n\t}\n\treturn syscall.ENOPROTOOPT", "\t\treturn fd.fakeNetFD.setReadBuffer(bytes)\n\t}\n\treturn nil"},
	{"net/sockopt_fake.go", "\t\treturn fd.fakeNetFD.setWriteBuffer(bytes)\n\t}\n\treturn syscall.ENOPROTOOPT", "\t\treturn fd.fakeNetFD.setWriteBuffer(bytes)\n\t}\n\treturn nil"},
	hint("net/sockopt_fake.go", "func setKeepAlive(fd *netFD, keepalive bool) error {\n"),
	hint("net/tcpsockopt_stub.go", "func setNoDelay(fd *netFD, noDelay bool) error {\n"),
	hint("net/tcpsockopt_stub.go", "func setKeepAliveIdle(fd *netFD, d time.Duration) error {\n"),
	hint("net/tcpsockopt_stub.go", "func setKeepAliveInterval(fd *netFD, d time.Duration) error {\n"),
	hint("net/tcpsockopt_stub.go", "func setKeepAliveCount(fd *netFD, n int) error {\n"),
	// No signal ever arrives here. Without this a program that asks for
	// signals spins: a note cannot be slept on where there is one thread.
	{
		"runtime/sigqueue.go", "func signal_recv() uint32 {\n\tfor {",
		"func signal_recv() uint32 {\n\tif GOOS == \"wasip1\" {\n\t\tsig.state.Store(sigReceiving)\n\t\tblock()\n\t}\n\tfor {",
	},
	// The roots that are built in stand in where neither SSL_CERT_FILE nor
	// SSL_CERT_DIR names others.
	{
		"crypto/x509/root_unix.go", "\tif roots.len() > 0 || firstErr == nil {\n\t\treturn roots, nil",
		"\tif roots.len() == 0 && os.Getenv(certFileEnv) == \"\" && os.Getenv(certDirEnv) == \"\" {\n\t\troots.AppendCertsFromPEM([]byte(builtinRoots))\n\t}\n\tif roots.len() > 0 || firstErr == nil {\n\t\treturn roots, nil",
	},
}

// after puts a statement first in a function.
func after(file, anchor, statement string) edit {
	return edit{file, anchor, anchor + "\t" + statement + "\n"}
}

// hint makes a function succeed for a connection of the host's.
func hint(file, anchor string) edit {
	return edit{file, anchor, anchor + "\tif fd.fakeNetFD == nil {\n\t\treturn nil\n\t}\n"}
}

//go:embed overlay/host_wasip1.go.src
var hostSource []byte

// added are the files that the overlay adds, by their place below GOROOT/src.
func added() (map[string][]byte, error) {
	roots, err := rootsSource()
	return map[string][]byte{"net/zz_host_wasip1.go": hostSource, "crypto/x509/zz_roots_wasip1.go": roots}, err
}

// rootsSource is Go source with the root certificates of Mozilla's list. A root
// that is trusted under conditions only is left out: X.509 cannot say them.
func rootsSource() ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("//go:build wasip1\n\npackage x509\n\nconst builtinRoots = `\n")
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if _, err := x509.ParseCertificate(root.Certificate); err != nil {
			return nil, fmt.Errorf("a root certificate: %w", err)
		}
		if err := pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	b.WriteString("`\n")
	return b.Bytes(), nil
}

// edited applies the edits to the standard library in src and returns the
// changed and added files by their place in it.
func edited(src fs.FS, version string) (map[string][]byte, error) {
	files, err := added()
	if err != nil {
		return nil, err
	}
	for _, e := range edits {
		text, ok := files[e.file]
		if !ok {
			if text, err = fs.ReadFile(src, e.file); err != nil {
				return nil, unknownGo(version, e.file)
			}
		}
		if strings.Count(string(text), e.anchor) != 1 {
			return nil, unknownGo(version, e.file)
		}
		files[e.file] = []byte(strings.Replace(string(text), e.anchor, e.with, 1))
	}
	return files, nil
}

func unknownGo(version, file string) error {
	return &images.Error{
		Kind: images.ErrTool, What: "the standard library of " + version + " is not one that is known here: " + file + " has changed",
		Next: "use Go " + testedGo + ", or a newer sandboxd",
	}
}

// testedGo is the release that the edits were last tried with. Others are taken
// if every anchor is found.
const testedGo = "1.26"
