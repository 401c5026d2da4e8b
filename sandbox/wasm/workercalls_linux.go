package wasm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// maxAddress bounds what a worker may ask to dial: a name and a port.
const maxAddress = 300

// handle serves one message of the worker about this sandbox. It must not
// wait: it runs on the worker's one reader, except that a flood of path
// operations holds its sender up.
func (sb *inWorker) handle(m message) {
	switch m.Kind {
	case kindStarted:
		var err error
		if m.Text != "" {
			err = &ModuleError{What: clip(strings.TrimPrefix(m.Text, "wasm module: "))}
		}
		select {
		case sb.started <- err:
		default: // said twice
		}
	case kindExit:
		if m.Exit != nil {
			exit := *m.Exit
			exit.Detail = clip(exit.Detail)
			if exit.Cause < 0 || exit.Cause > sandbox.HostFault {
				exit.Cause = sandbox.HostFault
			}
			select {
			case sb.ended <- exit:
			default: // said twice
			}
		}
	case kindCheck:
		var e wasip1.Errno
		if sb.check == nil || len(m.Text) > maxAddress || sb.check(m.Text) != nil {
			e = wasip1.EACCES
		}
		sb.answer(message{Call: m.Call, Errno: e})
	case kindDial:
		sb.beginDial(m)
	case kindCancel:
		sb.mu.Lock()
		if d := sb.dials[m.Call]; d != nil {
			d.giveUp()
		}
		sb.mu.Unlock()
	case kindPath:
		sb.beginPath(m)
	case kindLoad, kindStart, kindStop, kindReply, kindLoaded:
		// not a worker's to say
	}
}

func (sb *inWorker) answer(m message, files ...*os.File) {
	m.Kind = kindReply
	_ = sb.w.wire.send(m, files...) // if the worker is gone, so is the question
}

// spawn runs work that the sandbox waits for, unless it is over.
func (sb *inWorker) spawn(f func()) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if !sb.over {
		sb.work.Go(f)
	}
}

// dialling is a connection that a guest asked for, from the wish to its end.
// The sandbox's mutex guards it.
type dialling struct {
	cancel    context.CancelFunc
	connected bool
	gone      chan struct{} // closed when the guest has closed its end
	gaveUp    bool
}

// giveUp ends a dial that nobody waits for, or tells a relay that nobody reads
// any more. What the guest wrote before still leaves.
func (d *dialling) giveUp() {
	switch {
	case d.gaveUp:
	case d.connected:
		close(d.gone)
		d.gaveUp = true
	default:
		d.cancel()
	}
}

func (sb *inWorker) beginDial(m message) {
	ctx, cancel := context.WithCancel(sb.ctx)
	d := &dialling{cancel: cancel, gone: make(chan struct{})}
	sb.mu.Lock()
	_, twice := sb.dials[m.Call]
	full := len(sb.dials) >= int(min(sb.spec.Limits.Files, 1<<16))
	refuse := twice || full || sb.egress == nil || len(m.Text) > maxAddress
	if !refuse {
		sb.dials[m.Call] = d
	}
	sb.mu.Unlock()
	if refuse {
		cancel()
		sb.answer(message{Call: m.Call, Errno: wasip1.ENFILE})
		return
	}
	sb.spawn(func() {
		defer func() {
			cancel()
			sb.mu.Lock()
			delete(sb.dials, m.Call)
			sb.mu.Unlock()
		}()
		sb.dial(ctx, d, m)
	})
}

// dial opens a connection by the sandbox's egress and relays it over a socket
// of which the worker gets the other end. The connection itself stays here, so
// that its bytes are counted and its end is the egress's to decide.
func (sb *inWorker) dial(ctx context.Context, d *dialling, m message) {
	conn, err := sb.egress.DialContext(ctx, "tcp", m.Text)
	if err != nil {
		sb.answer(message{Call: m.Call, Errno: wasip1.DialErrno(err)})
		return
	}
	defer conn.Close() //nolint:errcheck // the egress knows how it went
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		sb.answer(message{Call: m.Call, Errno: wasip1.ENFILE})
		return
	}
	peer, err := net.FileConn(ours)
	_ = ours.Close() // peer has a descriptor of its own
	if err != nil {
		_ = theirs.Close()
		sb.answer(message{Call: m.Call, Errno: wasip1.ENFILE})
		return
	}
	defer peer.Close() //nolint:errcheck // a socket of our own
	sb.mu.Lock()
	d.connected = true
	sb.mu.Unlock()
	sb.answer(message{Call: m.Call}, theirs)
	_ = theirs.Close() // the worker has it
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close(); _ = peer.Close() })
	defer unhook()
	relay(conn, peer, d.gone)
}

// relay moves bytes between a connection and the guest's end of it until both
// directions are done. A half close passes through, an error cuts both, and
// once the guest is gone only what it wrote matters.
func relay(conn, guest net.Conn, gone <-chan struct{}) {
	in, out := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := pass(guest, conn) // that the guest takes no more is its right
		in <- err
	}()
	go func() {
		werr, rerr := pass(conn, guest)
		out <- errors.Join(werr, rerr)
	}()
	cut := func() { _, _ = conn.Close(), guest.Close() }
	inDone, outDone, guestGone := false, false, false
	for !inDone || !outDone {
		var err error
		select {
		case err = <-in:
			inDone = true
		case err = <-out:
			outDone = true
		case <-gone:
			guestGone, gone = true, nil
		}
		if err != nil || outDone && guestGone {
			cut()
		}
	}
}

// pass copies one direction to its end and passes that on. It tells which side
// failed, if one did.
func pass(to, from net.Conn) (werr, rerr error) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if _, werr := to.Write(buf[:n]); werr != nil {
			return werr, nil
		}
		switch {
		case errors.Is(err, io.EOF):
			if c, ok := to.(interface{ CloseWrite() error }); ok {
				return c.CloseWrite(), nil
			}
			return nil, nil
		case err != nil:
			return nil, err
		}
	}
}

func (sb *inWorker) beginPath(m message) {
	if m.Path == nil || len(m.Names) != 2 {
		sb.answer(message{Call: m.Call})
		return
	}
	select {
	case sb.slots <- struct{}{}:
	case <-sb.ctx.Done():
		return
	}
	sb.spawn(func() {
		defer func() { <-sb.slots }()
		op := *m.Path
		op.Path, op.NewPath = string(m.Names[0]), string(m.Names[1])
		res := sb.mounts.Do(op)
		out := message{Call: m.Call, Result: &res, Names: [][]byte{[]byte(res.Target)}}
		res.Target = ""
		if res.File == nil {
			sb.answer(out)
			return
		}
		sb.answer(out, res.File)
		_ = res.File.Close() // the worker has it
	})
}
