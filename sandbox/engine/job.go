//go:build linux

package engine

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
	"github.com/sandboxd/sandboxd/sandbox/container"
)

const (
	// startTimeout bounds a start whose caller set no bound.
	startTimeout = 5 * time.Minute
	// orphanGrace is how long a sandbox whose caller is gone may take to end
	// by itself before it is killed.
	orphanGrace = 2 * time.Second
	// removeTimeout bounds what follows the kill.
	removeTimeout = 30 * time.Second
	// maxLiveOpenings bounds what one sandbox holds open with a TTL.
	maxLiveOpenings = 8192
)

// job is one request under way; for a start, as long as the sandbox lives.
type job struct {
	since time.Time

	ctx    context.Context // of the request's work, until it is running
	cancel context.CancelFunc
	// stop is closed when the ladder shall begin, kill when it shall end at
	// once.
	stop, kill chan struct{}

	mu   sync.Mutex
	box  container.Box
	open map[endpoint]time.Time
}

// endpoint is what one element of the gateway's set lets through.
type endpoint struct {
	prefix netip.Prefix
	port   uint16 // 0: every port
}

func newJob(ctx context.Context) *job {
	j := &job{since: time.Now(), stop: make(chan struct{}), kill: make(chan struct{}), open: map[endpoint]time.Time{}}
	j.ctx, j.cancel = context.WithCancel(ctx)
	return j
}

// requestStop begins the ladder, or cancels what is not yet running.
func (j *job) requestStop(kill bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	closeOnce(j.stop)
	if kill {
		closeOnce(j.kill)
	}
	if j.box == nil {
		j.cancel()
	}
}

// closeOnce closes c unless it is closed; its callers hold the job's mutex.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// setBox makes the running box known to open.
func (j *job) setBox(b container.Box) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.box = b
}

// openings passes on what the caller asked to let through, within bounds.
func (j *job) openings(list []container.Opening) error {
	if err := checkOpenings(list, false); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.box == nil {
		return fmt.Errorf("opening the gateway: %w", sandbox.ErrClosed)
	}
	now := time.Now()
	added := map[endpoint]time.Time{}
	for _, o := range list {
		ports := o.Ports
		if len(ports) == 0 {
			ports = []uint16{0}
		}
		for _, p := range ports {
			added[endpoint{o.Prefix, p}] = now.Add(o.TTL)
		}
	}
	if len(j.open)+len(added) > maxLiveOpenings {
		for e, until := range j.open {
			if until.Before(now) {
				delete(j.open, e)
			}
		}
		if len(j.open)+len(added) > maxLiveOpenings {
			return fmt.Errorf("%w: over %d openings at once", ErrQuota, maxLiveOpenings)
		}
	}
	if err := j.box.Open(list); err != nil {
		return err
	}
	for e, until := range added {
		j.open[e] = until
	}
	return nil
}

// start starts a sandbox, hands its descriptors over, and stays with it until
// it is gone: its result is how it ended. It owns the mounts' descriptors.
func (p *peer) start(id uint32, j *job, m *startMsg, mounts []*os.File) (message, error) {
	defer closeAll(mounts)
	req, err := p.request(m, mounts)
	if err != nil {
		return nil, err
	}
	memory := req.Spec.Limits.MemoryBytes
	if err := p.srv.reserve(p.account, memory); err != nil {
		return nil, err
	}
	defer p.srv.release(p.account, memory)
	ctx, cancel := context.WithTimeout(j.ctx, startTimeout)
	box, files, err := p.host.Start(ctx, req)
	cancel()
	if err != nil {
		p.srv.log.Info("sandbox not started", "uid", p.cred.uid, "name", req.Spec.Name, "error", err)
		return nil, err
	}
	closeAll(mounts)
	j.setBox(box)
	spec := &req.Spec
	p.srv.register(j, Entry{ID: box.ID(), Tenant: spec.Tenant, Name: spec.Name, Isolation: spec.Isolation, Owner: p.cred.uid})
	defer p.srv.unregister(j)
	p.srv.log.Info("sandbox started", "id", box.ID(), "uid", p.cred.uid, "name", spec.Name, "isolation", spec.Isolation.String())

	present, list := packFiles(files)
	p.reply(id, &startedMsg{ID: box.ID(), Present: present}, list...)
	closeAll(list)
	exit := p.attend(j, box)
	p.srv.log.Info("sandbox ended", "id", box.ID(), "cause", exit.Cause.String(), "code", exit.Code)
	exit.Detail = printable(exit.Detail, maxText)
	return &exitedMsg{Exit: exit}, nil
}

// request checks what a caller asks for and turns it into a container.Request.
func (p *peer) request(m *startMsg, mounts []*os.File) (container.Request, error) {
	spec := m.Spec
	for i := range spec.Mounts {
		spec.Mounts[i].Source = mounts[i]
	}
	err := spec.Validate()
	if err == nil {
		err = checkSpec(&spec)
	}
	if err == nil {
		spec.Limits, err = bounded(spec.Limits, p.srv.cfg.Ceiling)
	}
	if err == nil {
		err = checkOpenings(m.Open, true)
	}
	if err == nil && !m.Gateway && len(m.Open) > 0 {
		err = fmt.Errorf("%w: openings without a gateway", sandbox.ErrInvalid)
	}
	if err == nil {
		err = unavailable(spec.Isolation, p.srv.cfg.Tiers)
	}
	for _, mt := range spec.Mounts {
		if err == nil {
			err = checkMount(p.cred, mt)
		}
	}
	if err != nil {
		return container.Request{}, err
	}
	return container.Request{
		Owner: p.cred.uid, Group: p.cred.gid, Groups: p.cred.groups, Spec: spec, Gateway: m.Gateway, Open: m.Open,
	}, nil
}

// attend waits for the box's end, or brings it about when the caller asks for
// it or is gone. It returns once nothing of the box is left, or says that the
// host could not remove it.
func (p *peer) attend(j *job, box container.Box) sandbox.Exit {
	ended := make(chan sandbox.Exit, 1)
	waiting, forget := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer forget()
	wg.Go(func() {
		exit, err := box.Wait(waiting)
		if err != nil {
			exit = sandbox.Exit{Cause: sandbox.HostFault, Detail: "its end could not be observed"}
		}
		ended <- exit
	})
	// Detached from the connection: removal must go on when the caller is gone.
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	select {
	case exit := <-ended:
		ended <- exit
	case <-j.stop:
	case <-p.ctx.Done():
		timer := time.AfterFunc(orphanGrace, kill)
		defer timer.Stop()
	}
	stopped := make(chan error, 1)
	wg.Go(func() { stopped <- box.Stop(ctx) })
	killed, gone := j.kill, p.ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case err := <-stopped:
			return p.lastWords(box, err, ended)
		case <-killed:
			killed = nil
			kill()
			late = time.After(removeTimeout)
		case <-gone:
			gone = nil
			timer := time.AfterFunc(orphanGrace, kill)
			defer timer.Stop()
		case <-late:
			late = nil
			p.srv.log.Error("a sandbox is not going away", "id", box.ID(), "after", removeTimeout)
		}
	}
}

// lastWords gives the exit of a box that Stop is done with. What Stop could
// not remove, Host.Close and the next engine's Collect try again.
func (p *peer) lastWords(box container.Box, stopErr error, ended <-chan sandbox.Exit) sandbox.Exit {
	exit := sandbox.Exit{Cause: sandbox.HostFault, Detail: "it was removed, but its end was not observed"}
	late := time.After(removeTimeout)
	if stopErr != nil {
		p.srv.log.Error("removing a sandbox failed", "id", box.ID(), "error", stopErr)
		exit.Detail = "its end was not observed"
		late = time.After(0)
	}
	select {
	case exit = <-ended:
	case <-late:
	}
	if stopErr != nil {
		exit.Detail = strings.TrimPrefix(exit.Detail+"; the engine could not remove all of it: "+stopErr.Error(), "; ")
	}
	return exit
}

// unavailable says so where a tier is not among those that can be had.
func unavailable(tier sandbox.Isolation, have []sandbox.Isolation) error {
	for _, t := range have {
		if t == tier {
			return nil
		}
	}
	e := &sandbox.UnavailableError{Tier: tier, What: "the engine has no runtime for it", Next: "sandboxd doctor says what this host can give"}
	switch {
	case tier.IsWASM():
		e.What, e.Next = "the engine runs images only", ""
	case tier == sandbox.Kata:
		e.What, e.Next = "this engine starts no virtual machines", "use gvisor"
	}
	return e
}
