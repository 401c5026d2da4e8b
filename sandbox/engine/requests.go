//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sandboxd/sandboxd/sandbox"
)

const (
	importTimeout = 15 * time.Minute
	// importSlack and importRate (bytes a second) bound how long the engine
	// waits for an archive's bytes in all: imports wait for one another, so a
	// caller that drips must not hold them up.
	importSlack = 30 * time.Second
	importRate  = 2 << 20
)

// short answers the requests that take no time of their own.
func (p *peer) short(j *job, m message) (message, error) {
	ctx, cancel := context.WithTimeout(j.ctx, workTimeout)
	defer cancel()
	switch m := m.(type) {
	case *hasMsg:
		if err := checkDigest(m.Digest); err != nil {
			return nil, err
		}
		yes, err := p.host.HasImage(ctx, m.Digest)
		return &answerMsg{Yes: yes}, err
	case *missingMsg:
		for _, d := range m.Digests {
			if err := checkDigest(d); err != nil {
				return nil, err
			}
		}
		list, err := p.host.Missing(ctx, m.Digests)
		return &lackingMsg{Digests: list}, err
	case *openMsg:
		target := p.job(m.Target)
		if target == nil {
			return nil, fmt.Errorf("opening the gateway: %w", sandbox.ErrClosed)
		}
		return &doneMsg{}, target.openings(m.Open)
	case *stopMsg:
		// A target that is gone already is what the caller wanted.
		if target := p.job(m.Target); target != nil && target != j {
			target.requestStop(m.Kill)
		}
		return &doneMsg{}, nil
	case *listMsg:
		return p.srv.list(p.cred.uid, m.After), nil
	}
	return nil, fmt.Errorf("%w: %s", errMalformed, m.kind())
}

// checkDigest refuses anything that is not sha256:<64 hex>.
func checkDigest(digest string) error {
	s := sandbox.Spec{Isolation: sandbox.Container, Args: []string{"-"}, Image: sandbox.Image{Digest: digest}}
	return s.Validate()
}

// importImage takes an archive in through a pipe that the engine makes: with a
// descriptor of the caller's, the caller could make the engine's reads block
// for ever. Imports beyond the quota wait their turn; one whose image arrived
// meanwhile is done without a pipe.
func (p *peer) importImage(id uint32, j *job, m *importMsg) (message, error) {
	if err := checkDigest(m.Digest); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(j.ctx, importTimeout)
	defer cancel()
	for _, places := range []chan struct{}{p.account.imports, p.srv.imports} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if yes, err := p.host.HasImage(ctx, m.Digest); err != nil || yes {
		return &doneMsg{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("image import: %w", err)
	}
	defer func() { _ = r.Close() }()
	undo := waitClosed(ctx, func() { _ = r.Close() })
	defer undo()
	p.reply(id, &pipeMsg{}, w)
	_ = w.Close()
	err = p.host.Import(ctx, m.Digest, &archiveReader{f: r, left: p.srv.cfg.MaxImageBytes})
	if err != nil && ctx.Err() != nil {
		err = errors.Join(ctx.Err(), err)
	}
	return &doneMsg{}, err
}

// archiveReader bounds an archive in size, and in the time that its reader
// waits for it.
type archiveReader struct {
	f      *os.File
	left   int64 // bytes that may still come
	read   int64
	waited time.Duration
}

func (r *archiveReader) Read(b []byte) (int, error) {
	if r.left <= 0 {
		return 0, fmt.Errorf("%w: the image archive is over the engine's size limit", sandbox.ErrInvalid)
	}
	if int64(len(b)) > r.left {
		b = b[:r.left]
	}
	begin := time.Now()
	patience := importSlack + time.Duration(r.read/importRate)*time.Second - r.waited
	if err := r.f.SetReadDeadline(begin.Add(patience)); err != nil {
		return 0, err
	}
	n, err := r.f.Read(b)
	r.waited += time.Since(begin)
	r.left -= int64(n)
	r.read += int64(n)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return n, fmt.Errorf("%w: the image archive comes too slowly", sandbox.ErrInvalid)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return n, fmt.Errorf("reading the image archive: %w", err)
	}
	return n, err
}
