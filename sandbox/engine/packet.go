//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// writeTimeout bounds how long one side waits for the other to take a
// message. Who reads this slowly is treated as gone.
const writeTimeout = 10 * time.Second

// packetConn sends and receives messages with their descriptors. recv is for
// one goroutine; send and close are for any.
type packetConn struct {
	c   *net.UnixConn
	buf []byte
	oob []byte
	wmu sync.Mutex
}

func newPacketConn(c *net.UnixConn) *packetConn {
	// Room for one whole message where the host's default is small; the
	// kernel caps it, and a message that does not fit fails with EMSGSIZE.
	_ = c.SetWriteBuffer(2 * maxMessage)
	return &packetConn{
		c: c,
		// One byte more than a message tells a whole one from a cut one.
		buf: make([]byte, maxMessage+1),
		oob: make([]byte, unix.CmsgSpace(4*(maxFiles+1))),
	}
}

func (p *packetConn) close() { _ = p.c.Close() }

// send writes one message. The files stay the caller's.
func (p *packetConn) send(id uint32, m message, files ...*os.File) error {
	b := marshal(id, m)
	if len(b) > maxMessage {
		return fmt.Errorf("%w: a message of %d bytes, over %d", errTooBig, len(b), maxMessage)
	}
	p.wmu.Lock()
	defer p.wmu.Unlock()
	if err := p.c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	return withDescriptors(files, nil, func(fds []int) error {
		var oob []byte
		if len(fds) > 0 {
			oob = unix.UnixRights(fds...)
		}
		_, _, err := p.c.WriteMsgUnix(b, oob, nil)
		return err
	})
}

// withDescriptors runs f with the files' descriptors held open. File.Fd would
// do, but may put them into blocking mode.
func withDescriptors(files []*os.File, fds []int, f func([]int) error) error {
	if len(files) == 0 {
		return f(fds)
	}
	rc, err := files[0].SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	err = rc.Control(func(fd uintptr) {
		inner = withDescriptors(files[1:], append(fds, int(fd)), f)
	})
	return errors.Join(err, inner)
}

// errTooBig marks a message that this side would have to send over the bound.
var errTooBig = errors.New("message too big")

// recv reads one message. The files are the caller's to close. io.EOF means
// that the other side is gone; other errors mean that the connection is of no
// more use.
func (p *packetConn) recv() (uint32, message, []*os.File, error) {
	n, oobn, flags, _, err := p.c.ReadMsgUnix(p.buf, p.oob)
	if err != nil {
		return 0, nil, nil, err
	}
	files, err := parseRights(p.oob[:oobn])
	switch {
	case err != nil:
	case n == 0:
		err = io.EOF
	case n > maxMessage || flags&unix.MSG_TRUNC != 0:
		err = fmt.Errorf("%w: over %d bytes", errMalformed, maxMessage)
	case flags&unix.MSG_CTRUNC != 0 || len(files) > maxFiles:
		err = fmt.Errorf("%w: over %d descriptors", errMalformed, maxFiles)
	default:
		var id uint32
		var m message
		if id, m, err = unmarshal(p.buf[:n]); err == nil {
			return id, m, files, nil
		}
	}
	closeAll(files)
	return 0, nil, nil, err
}

// parseRights takes ownership of every descriptor in the control data, even
// where it then reports an error. net sets close-on-exec on them.
func parseRights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: control data", errMalformed)
	}
	var files []*os.File
	for i := range msgs {
		fds, perr := unix.ParseUnixRights(&msgs[i])
		if perr != nil {
			err = fmt.Errorf("%w: control data of another kind", errMalformed)
			continue
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "passed"))
		}
	}
	return files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// waitClosed runs f when ctx ends, until the returned stop is called; stop
// waits for a running f.
func waitClosed(ctx context.Context, f func()) (stop func()) {
	done := make(chan struct{})
	undo := context.AfterFunc(ctx, func() { defer close(done); f() })
	return func() {
		if !undo() {
			<-done
		}
	}
}
