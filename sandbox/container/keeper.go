//go:build linux

package container

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	// keeperName is the keeper's argument vector's first element.
	keeperName = "sandboxd-keeper"
	// keeperPause is how long a keeper that ended is not started again.
	keeperPause = time.Second
)

// keeper is a process beside the engine's that outlives it by a moment. It
// holds the other end of a pipe, over which it is told which boxes there are,
// and when the pipe closes, however the engine ended, it ends what is left of
// them. What a dead engine's boxes are made of, but their processes, is the
// next engine's to collect.
//
// It also holds a lock in the state folder, so that the next engine starts
// nothing before it has ended.
type keeper struct {
	instance string
	lock     *os.File
	log      *slog.Logger
	done     chan struct{} // closed when watch has ended
	quit     chan struct{} // closed by close

	mu      sync.Mutex // guards what follows
	ids     map[string]bool
	process *os.Process
	pipe    *os.File // nil while no keeper runs; its end is the engine's end
	closed  bool
}

// startKeeper waits for the keeper of an engine that died, if there is one,
// then starts this engine's.
func startKeeper(cfg Config) (*keeper, error) {
	lock, err := lockFile(filepath.Join(cfg.StateDir, "keeper.lock"), int(2*keeperBound/lockPause))
	if err != nil {
		return nil, fmt.Errorf("container: the keeper of an earlier engine has not ended: %w", err)
	}
	k := &keeper{
		instance: cfg.Instance, lock: lock, log: cfg.Logger, done: make(chan struct{}), quit: make(chan struct{}), ids: map[string]bool{},
	}
	cmd, err := k.spawn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("container: start the keeper: %w", err), lock.Close())
	}
	go k.watch(cmd)
	return k, nil
}

// spawn starts a keeper and tells it of all boxes.
func (k *keeper) spawn() (*exec.Cmd, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/proc/self/exe") //nolint:noctx // it outlives this process by design
	cmd.Args, cmd.Env, cmd.Dir = []string{keeperName, k.instance}, []string{"GOMAXPROCS=1"}, "/"
	cmd.Stdin, cmd.Stderr, cmd.ExtraFiles = r, os.Stderr, []*os.File{k.lock}
	// What is sent to the engine's group or terminal is not meant for it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = errors.Join(cmd.Start(), r.Close())
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pipe, k.process = w, cmd.Process
	for id := range k.ids {
		k.tell("+" + id)
	}
	if k.closed { // meanwhile; nobody else would let it end
		err = k.pipe.Close()
		k.pipe = nil
	}
	return cmd, err
}

// watch waits for the keeper, and starts another where it ended too early.
func (k *keeper) watch(cmd *exec.Cmd) {
	defer close(k.done)
	for {
		err := cmd.Wait()
		k.mu.Lock()
		closed := k.closed
		if k.pipe != nil {
			_ = k.pipe.Close()
			k.pipe = nil
		}
		k.mu.Unlock()
		if closed {
			return
		}
		k.log.Error("the keeper ended, and is started again", "error", err)
		for cmd = nil; cmd == nil; {
			select {
			case <-k.quit:
				return
			case <-time.After(keeperPause):
			}
			if cmd, err = k.spawn(); err != nil {
				k.log.Error("starting the keeper failed", "error", err)
			}
		}
	}
}

// tell writes one line; the caller holds mu. A keeper that takes none is
// killed, so that its successor gets it. To close the pipe would be to have it
// end every box.
func (k *keeper) tell(line string) {
	if k.pipe == nil {
		return
	}
	err := k.pipe.SetWriteDeadline(time.Now().Add(keeperPause))
	if err == nil {
		_, err = k.pipe.WriteString(line + "\n")
	}
	if err != nil {
		k.log.Error("the keeper takes no words", "error", err)
		_ = k.process.Kill()
	}
}

// begin and end say that a box will be there, and that nothing of it is.
func (k *keeper) begin(id string) { k.note(id, true) }
func (k *keeper) end(id string)   { k.note(id, false) }

func (k *keeper) note(id string, there bool) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if there {
		k.ids[id] = true
		k.tell("+" + id)
		return
	}
	delete(k.ids, id)
	k.tell("-" + id)
}

// close lets the keeper end what is left, and waits for it, within bounds.
func (k *keeper) close() error {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	k.closed = true
	close(k.quit)
	var err error
	if k.pipe != nil {
		err = k.pipe.Close()
		k.pipe = nil
	}
	k.mu.Unlock()
	late := time.AfterFunc(2*keeperBound, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		_ = k.process.Kill()
	})
	defer late.Stop()
	<-k.done
	return errors.Join(err, k.lock.Close())
}
