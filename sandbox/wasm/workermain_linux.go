package wasm

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/wasm/internal/wasip1"
)

// workerArgument is what a worker is started with, beside descriptor 3.
const (
	workerArgument = "sandboxd-wasm-worker"
	workerSocket   = 3
)

// WorkerMain turns this process into a worker if it was started as one, and
// then does not return. A program that uses tier wasm calls it first of all in
// main.
func WorkerMain() {
	if len(os.Args) != 2 || os.Args[1] != workerArgument {
		return
	}
	if err := runWorker(); err != nil {
		fmt.Fprintln(os.Stderr, "wasm worker:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// workerProcess is the worker's side: one module, any number of guests of one
// tenant.
type workerProcess struct {
	wire *wire
	mod  *module

	mu     sync.Mutex
	guests map[string]*workerGuest
	calls  map[uint64]chan reply
	next   uint64
}

type workerGuest struct {
	cancel context.CancelFunc
}

type reply struct {
	m     message
	files []*os.File
}

func runWorker() error {
	// The guest's memory is not the collector's business, and a collection has
	// to wait for a guest that computes: few are better.
	debug.SetGCPercent(400)
	w, err := newWire(os.NewFile(workerSocket, "host"))
	if err != nil {
		return err
	}
	m, files, err := w.recv()
	if err != nil {
		return err
	}
	if m.Kind != kindLoad || len(files) != 1 {
		return errors.New("no module to load")
	}
	p := &workerProcess{wire: w, guests: map[string]*workerGuest{}, calls: map[uint64]chan reply{}}
	// Before anything of a stranger's is read.
	if err := lockDown(m.Text); err != nil {
		return errors.Join(err, w.send(message{Kind: kindLoaded, Errno: wasip1.ENOTSUP, Text: clip(err.Error())}))
	}
	if err := p.load(m.Text, files[0]); err != nil {
		return errors.Join(err, w.send(message{Kind: kindLoaded, Errno: wasip1.EIO, Text: clip(err.Error())}))
	}
	if err := w.send(message{Kind: kindLoaded}); err != nil {
		return err
	}
	return p.serve()
}

// load takes the module's compiled code from the cache.
func (p *workerProcess) load(cacheDir string, file *os.File) error {
	bin, err := readMem(file)
	if err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if p.mod, err = loadModule(context.Background(), bin, cacheDir, false); err != nil {
		return err
	}
	debug.FreeOSMemory() // decoding a module leaves several times its size behind
	return lockDownFurther()
}

// serve handles the host's messages until it closes the connection.
func (p *workerProcess) serve() error {
	for {
		m, files, err := p.wire.recv()
		if err != nil {
			return nil //nolint:nilerr // the host is gone or has had enough
		}
		switch m.Kind {
		case kindStart:
			p.start(m, files)
		case kindStop:
			p.mu.Lock()
			if g := p.guests[m.Sandbox]; g != nil {
				g.cancel()
			}
			p.mu.Unlock()
		case kindReply:
			p.mu.Lock()
			c := p.calls[m.Call]
			delete(p.calls, m.Call)
			p.mu.Unlock()
			if c == nil {
				closeAll(files) // nobody waits for it any more
			} else {
				c <- reply{m, files}
			}
		default:
			closeAll(files)
		}
	}
}

// start begins a guest. A module's start section can spin, so even this must
// not hold up the messages.
func (p *workerProcess) start(m message, files []*os.File) {
	ctx, cancel := context.WithCancel(context.Background())
	p.mu.Lock()
	p.guests[m.Sandbox] = &workerGuest{cancel: cancel}
	p.mu.Unlock()
	go func() {
		defer cancel()
		exit, err := p.run(ctx, m, files)
		p.mu.Lock()
		delete(p.guests, m.Sandbox)
		p.mu.Unlock()
		out := message{Kind: kindExit, Sandbox: m.Sandbox, Exit: &exit}
		if err != nil {
			out = message{Kind: kindStarted, Sandbox: m.Sandbox, Text: clip(err.Error())}
		}
		_ = p.wire.send(out) // if the host is gone, so are we
	}()
}

// run runs a guest from its start to its end. An error means that it never
// started.
func (p *workerProcess) run(ctx context.Context, m message, files []*os.File) (exit sandbox.Exit, err error) {
	defer closeAll(files)
	if m.Start == nil || len(files) != 4 {
		return exit, errors.New("an incomplete start")
	}
	cfg, err := p.config(m, files[3]) //nolint:contextcheck // the worker ends with its host, not with a context
	if err != nil {
		return exit, err
	}
	in, err := p.mod.instantiate(ctx, cfg, m.Start.MemoryBytes)
	if err != nil {
		return exit, err
	}
	stdin, stdout, stderr := in.sys.Stdio()
	var output sync.WaitGroup
	output.Go(func() { drain(stdout, files[1]) })
	output.Go(func() { drain(stderr, files[2]) })
	go func() { // ends when the host closes its end, or with the deferred close
		fill(stdin, files[0])
	}()
	// Stopping a guest also stops waiting for somebody to read its output.
	unhook := context.AfterFunc(ctx, func() { closeAll(files[1:3]) })
	defer unhook()
	if err := p.wire.send(message{Kind: kindStarted, Sandbox: m.Sandbox}); err != nil {
		return exit, err
	}
	exit = in.run()
	if err := in.close(); err != nil && exit.Detail == "" { //nolint:contextcheck // the worker ends with its host, not with a context
		exit.Detail = clip("freeing the guest: " + err.Error())
	}
	output.Wait()
	return exit, nil
}

func (p *workerProcess) config(m message, text *os.File) (cfg wasip1.Config, err error) {
	b, err := readMem(text)
	if err != nil {
		return cfg, err
	}
	var t guestText
	if err := json.Unmarshal(b, &t); err != nil {
		return cfg, err
	}
	cfg = wasip1.Config{Args: toStrings(t.Args), Env: toStrings(t.Env), MaxFiles: m.Start.MaxFiles, Private: m.Start.Private}
	cfg.Mounts = &remoteMounts{p: p, sandbox: m.Sandbox, names: toStrings(t.Mounts)}
	if m.Start.Net {
		cfg.Dial = func(ctx context.Context, _, address string) (net.Conn, error) { return p.dial(ctx, m.Sandbox, address) }
	}
	if m.Start.Check {
		cfg.CheckName = func(host string) error {
			r, err := p.call(context.Background(), message{Kind: kindCheck, Sandbox: m.Sandbox, Text: host})
			if err == nil && r.m.Errno != wasip1.Success {
				err = r.m.Errno
			}
			return err
		}
	}
	return cfg, nil
}

// call sends a request to the host and waits for its reply.
func (p *workerProcess) call(ctx context.Context, m message) (reply, error) {
	c := make(chan reply, 1)
	p.mu.Lock()
	p.next++
	m.Call = p.next
	p.calls[m.Call] = c
	p.mu.Unlock()
	if err := p.wire.send(m); err != nil {
		return reply{}, err
	}
	select {
	case r := <-c:
		return r, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	_, waiting := p.calls[m.Call]
	delete(p.calls, m.Call)
	p.mu.Unlock()
	if !waiting {
		r := <-c // it came just now
		closeAll(r.files)
	}
	_ = p.wire.send(message{Kind: kindCancel, Sandbox: m.Sandbox, Call: m.Call}) // if the host is gone, so are we
	return reply{}, ctx.Err()
}

// dial asks the host for a connection and gets one end of a socket.
func (p *workerProcess) dial(ctx context.Context, id, address string) (net.Conn, error) {
	r, err := p.call(ctx, message{Kind: kindDial, Sandbox: id, Text: address})
	if err != nil {
		return nil, err
	}
	defer closeAll(r.files)
	switch {
	case r.m.Errno != wasip1.Success:
		return nil, r.m.Errno
	case len(r.files) != 1:
		return nil, wasip1.EIO
	}
	c, err := net.FileConn(r.files[0]) // has a descriptor of its own
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(wasip1.EIO, c.Close())
	}
	return &handedConn{UnixConn: u, closed: sync.OnceFunc(func() {
		_ = p.wire.send(message{Kind: kindCancel, Sandbox: id, Call: r.m.Call}) // if the host is gone, so are we
	})}, nil
}

// handedConn is a connection that the host relays. Its end has to be said: the
// host cannot tell a closed socket from a half-closed one.
type handedConn struct {
	*net.UnixConn
	closed func()
}

func (c *handedConn) Close() error {
	err := c.UnixConn.Close()
	c.closed()
	return err
}

// remoteMounts asks the host for each operation on a path: no path can be
// opened here.
type remoteMounts struct {
	p       *workerProcess
	sandbox string
	names   []string
}

// Names implements wasip1.Mounts.
func (r *remoteMounts) Names() []string { return r.names }

// Do implements wasip1.Mounts.
func (r *remoteMounts) Do(op wasip1.PathOp) wasip1.PathResult {
	names := [][]byte{[]byte(op.Path), []byte(op.NewPath)}
	op.Path, op.NewPath = "", ""
	got, err := r.p.call(context.Background(), message{Kind: kindPath, Sandbox: r.sandbox, Path: &op, Names: names})
	if err != nil || got.m.Result == nil {
		return wasip1.PathResult{Errno: wasip1.EIO}
	}
	res := *got.m.Result
	if len(got.m.Names) == 1 {
		res.Target = string(got.m.Names[0])
	}
	if len(got.files) > 0 {
		res.File = got.files[0]
		closeAll(got.files[1:])
	}
	return res
}

// fill moves the host's bytes to the guest.
func fill(to *wasip1.Pipe, from *os.File) {
	w := to.Writer()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			_ = w.Close() // always nil
			return
		}
	}
}

// drain moves the guest's bytes to the host. Where the host has closed its
// end, the guest's writes fail from then on.
func drain(from *wasip1.Pipe, to *os.File) {
	r := from.Reader()
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				_ = r.Close() // always nil
				return
			}
		}
		if err != nil {
			return
		}
	}
}
