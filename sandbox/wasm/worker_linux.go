package wasm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// loadBound is how long a worker may take to load a compiled module.
const loadBound = 60 * time.Second

// errLoad marks a worker that is locked down but could not load its module.
var errLoad = errors.New("the worker could not load the module")

// errBrokeOff marks a worker that ended the conversation, mostly by dying.
var errBrokeOff = errors.New("the worker broke off")

// worker is a worker process as the host sees it.
type worker struct {
	key  workerKey
	slot *workerSlot
	wire *wire
	cmd  *exec.Cmd
	said *head // what it wrote to stderr, for when it crashes

	dead chan struct{} // closed once the process is gone and reaped
	end  error         // how it ended; set before dead

	mu     sync.Mutex
	why    error // why we killed it, if we did
	guests map[string]*inWorker
}

// startWorker starts a process and has it load the module from the cache.
func startWorker(cfg Config, cacheDir string, bin []byte) (*worker, error) {
	ours, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, err
	}
	defer ours.Close() //nolint:errcheck // newWire has a descriptor of its own
	wire, err := newWire(ours)
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	w := &worker{wire: wire, said: &head{}, dead: make(chan struct{}), guests: map[string]*inWorker{}}
	command := append(append([]string(nil), cfg.WorkerCommand...), workerArgument)
	w.cmd = exec.Command(command[0], command[1:]...) //nolint:noctx // the operator's own binary; kill ends it
	// Else the Go runtime opens files of /sys to count processors.
	w.cmd.Env = []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0"}
	w.cmd.Dir = "/"
	w.cmd.Stderr = w.said
	w.cmd.ExtraFiles = []*os.File{theirs}
	// A group of its own keeps a terminal's signals away; and whatever kills
	// this process kills the worker, even one whose guest spins.
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	began := make(chan error, 1)
	go w.own(began)
	err = <-began
	_ = theirs.Close() // the worker has it
	if err == nil {
		err = w.load(cacheDir, bin)
	}
	if err != nil {
		if w.cmd.Process != nil {
			w.kill(err)
			<-w.dead
			err = fmt.Errorf("%w (%s)", err, clip(w.said.String()))
		}
		return nil, errors.Join(err, wire.conn.Close())
	}
	return w, nil
}

// own starts the process and waits for it on one thread: the kernel ties
// Pdeathsig to the thread that started it.
func (w *worker) own(began chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := w.cmd.Start(); err != nil {
		began <- fmt.Errorf("starting a wasm worker: %w", err)
		return
	}
	began <- nil
	w.end = w.cmd.Wait()
	close(w.dead)
}

func (w *worker) load(cacheDir string, bin []byte) error {
	file, err := memFile("module", bin)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // the worker has its own
	if err := w.wire.conn.SetReadDeadline(time.Now().Add(loadBound)); err != nil {
		return err
	}
	if err := w.wire.send(message{Kind: kindLoad, Text: cacheDir}, file); err != nil {
		return fmt.Errorf("talking to a new wasm worker: %w", err)
	}
	m, files, err := w.wire.recv()
	closeAll(files)
	switch {
	case err != nil:
		return fmt.Errorf("waiting for a new wasm worker: %w", err)
	case m.Kind != kindLoaded:
		return fmt.Errorf("a new wasm worker said %q", clip(string(m.Kind)))
	case m.Errno == wasip1.ENOTSUP:
		return &sandbox.UnavailableError{Tier: sandbox.WASM, What: "a worker cannot be locked down: " + clip(m.Text), Next: "use a kernel with Landlock and seccomp, or wasm-inprocess"}
	case m.Text != "":
		return fmt.Errorf("%w: %s", errLoad, clip(m.Text))
	}
	return w.wire.conn.SetReadDeadline(time.Time{})
}

// serve handles the worker's messages until it is gone, and then ends its
// sandboxes.
func (w *worker) serve() {
	for {
		m, files, err := w.wire.recv()
		if err != nil {
			break
		}
		closeAll(files) // a worker has nothing to hand over
		w.mu.Lock()
		g := w.guests[m.Sandbox]
		w.mu.Unlock()
		if g != nil {
			g.handle(m)
		}
	}
	w.kill(errBrokeOff)
	<-w.dead
	_ = w.wire.conn.Close() // nothing more to say
}

// kill ends the process; why is the first caller's reason.
func (w *worker) kill(why error) {
	w.mu.Lock()
	if w.why == nil {
		w.why = why
	}
	w.mu.Unlock()
	_ = w.cmd.Process.Kill() // fails only once it is gone
}

func (w *worker) isDead() bool {
	select {
	case <-w.dead:
		return true
	default:
		return false
	}
}

func (w *worker) add(id string, g *inWorker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.guests[id] = g
}

func (w *worker) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.guests, id)
}

// reason is why the worker was killed by us, or nil. The worker must be dead.
func (w *worker) reason() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.why
}

// head keeps the beginning of what is written to it, where a crash says why.
type head struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (h *head) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if room := 4096 - h.b.Len(); room > 0 {
		h.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}

func (h *head) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}
