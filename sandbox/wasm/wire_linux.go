package wasm

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// Bounds of one message between host and worker.
const (
	maxMessage = 128 << 10
	maxFiles   = 4
)

// kind says what a message is.
type kind string

// Messages from the host to a worker.
const (
	kindLoad  kind = "load"  // Text is the cache folder; file: the module
	kindStart kind = "start" // Start; files: stdin, stdout, stderr, guestText
	kindStop  kind = "stop"
	kindReply kind = "reply" // to a call; file: what was opened
)

// Messages from a worker to the host. Those with a Call expect a reply.
const (
	kindLoaded  kind = "loaded" // Text is what went wrong, or empty
	kindStarted kind = "started"
	kindExit    kind = "exit"
	kindDial    kind = "dial"
	kindCancel  kind = "cancel" // a dial that nobody waits for any more
	kindCheck   kind = "check"
	kindPath    kind = "path"
)

// message is one datagram. The worker may be hostile: the host believes no
// field of what it sends.
type message struct {
	Kind    kind
	Sandbox string             `json:",omitempty"`
	Call    uint64             `json:",omitempty"`
	Text    string             `json:",omitempty"`
	Errno   wasip1.Errno       `json:",omitempty"`
	Start   *startMessage      `json:",omitempty"`
	Exit    *sandbox.Exit      `json:",omitempty"`
	Path    *wasip1.PathOp     `json:",omitempty"`
	Result  *wasip1.PathResult `json:",omitempty"`
	// Names are the paths of Path and the target of Result as bytes: a path
	// need not be text, which a JSON string would change.
	Names [][]byte `json:",omitempty"`
}

// startMessage is what a worker needs to know of a guest. Its strings travel
// in a file, since they can be long.
type startMessage struct {
	MemoryBytes int64
	MaxFiles    int
	Net, Check  bool
	Private     []wasip1.PrivateSpec
}

// guestText is the content of that file.
type guestText struct {
	Args, Env, Mounts [][]byte
}

// wire is one end of the connection between host and worker. Sending is safe
// for concurrent use, receiving is for one reader.
type wire struct {
	conn *net.UnixConn
	mu   sync.Mutex
	buf  []byte
	oob  []byte
}

func newWire(f *os.File) (*wire, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), c.Close())
	}
	return &wire{conn: u, buf: make([]byte, maxMessage), oob: make([]byte, unix.CmsgSpace(4*maxFiles))}, nil
}

// send passes a message with open files, which stay the caller's.
func (w *wire) send(m message, files ...*os.File) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(b) > maxMessage {
		return fmt.Errorf("a message of %d bytes, over %d", len(b), maxMessage)
	}
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _, err = w.conn.WriteMsgUnix(b, oob, nil)
	return err
}

// recv returns the next message; the files are the caller's to close.
func (w *wire) recv() (m message, files []*os.File, err error) {
	n, k, flags, _, err := w.conn.ReadMsgUnix(w.buf, w.oob)
	if err != nil {
		return m, nil, err
	}
	if files, err = parseFiles(w.oob[:k]); err == nil {
		switch {
		case n == 0:
			err = io.EOF
		case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
			err = errors.New("a message that was cut short")
		default:
			err = json.Unmarshal(w.buf[:n], &m)
		}
	}
	if err != nil {
		closeAll(files)
		return m, nil, err
	}
	return m, files, nil
}

func parseFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			closeAll(files)
			return nil, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			// Pipes then wait in the poller rather than on a thread each, and a
			// close unblocks them. It means nothing to files.
			if err := unix.SetNonblock(fd, true); err != nil {
				closeAll(append(files, os.NewFile(uintptr(fd), "received")))
				return nil, os.NewSyscallError("fcntl", err)
			}
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// socketPair returns both ends of a connected unix socket.
func socketPair(kind int) (a, b *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "host"), os.NewFile(uintptr(fds[1]), "worker"), nil
}

// memFile holds bytes that another process gets to read.
func memFile(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	seals := unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(os.NewSyscallError("seal", err), f.Close())
	}
	return f, nil
}

// readMem reads what memFile wrote, from its beginning.
func readMem(f *os.File) ([]byte, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b := make([]byte, st.Size())
	_, err = f.ReadAt(b, 0)
	return b, err
}

func toBytes(list []string) [][]byte {
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = []byte(s)
	}
	return out
}

func toStrings(list [][]byte) []string {
	out := make([]string, len(list))
	for i, b := range list {
		out[i] = string(b)
	}
	return out
}
