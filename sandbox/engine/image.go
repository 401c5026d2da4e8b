//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/sandboxd/sandboxd/sandbox"
)

// ensureImage hands an image over unless the engine has it. Starts that need
// the same image at once share one hand-over.
func (c *Client) ensureImage(ctx context.Context, s *session, image sandbox.Image) error {
	for {
		has, err := roundTrip[*answerMsg](ctx, s, &hasMsg{Digest: image.Digest})
		if err != nil {
			return fmt.Errorf("asking for image %s: %w", image.Digest, err)
		}
		if has.Yes {
			return nil
		}
		c.mu.Lock()
		running := c.imports[image.Digest]
		mine := make(chan struct{})
		if running == nil {
			c.imports[image.Digest] = mine
		}
		c.mu.Unlock()
		if running == nil {
			err := c.handOver(ctx, s, image)
			c.mu.Lock()
			delete(c.imports, image.Digest)
			c.mu.Unlock()
			close(mine)
			return err
		}
		select {
		case <-running: // ask again: the other hand-over may have failed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// handOver gives the engine what it lacks of the image. What it has may be of
// another hand-over, which fails: then this one is repeated with everything.
func (c *Client) handOver(ctx context.Context, s *session, image sandbox.Image) error {
	a, err := openArchive(image)
	if err != nil {
		return err
	}
	defer a.close()
	all := len(a.blobs)
	lacking, err := roundTrip[*lackingMsg](ctx, s, &missingMsg{Digests: a.digests()})
	if err != nil {
		return fmt.Errorf("asking for the parts of image %s: %w", image.Digest, err)
	}
	a.only(lacking.Digests)
	err = c.send(ctx, s, a, image.Digest)
	if err == nil || len(a.blobs) == all || !errors.Is(err, sandbox.ErrInvalid) {
		return err
	}
	whole, err := openArchive(image)
	if err != nil {
		return err
	}
	defer whole.close()
	return c.send(ctx, s, whole, image.Digest)
}

// send streams an archive to the engine.
func (c *Client) send(ctx context.Context, s *session, a *archive, digest string) error {
	call, err := s.send(&importMsg{Digest: digest})
	if err != nil {
		return err
	}
	r, err := s.take(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			s.abandon(ctx, call)
		}
		return fmt.Errorf("handing over image %s: %w", digest, err)
	}
	if r.m.kind() == kindDone {
		return nil // another client's hand-over came first
	}
	if _, err := expect[*pipeMsg](r); err != nil {
		return err
	}
	writeErr := c.stream(ctx, a, r.files, digest)
	if writeErr != nil && !errors.Is(writeErr, syscall.EPIPE) {
		// The engine sees the end of a cut archive and fails, which says less.
		s.abandon(ctx, call)
		return fmt.Errorf("handing over image %s: %w", digest, writeErr)
	}
	r, err = s.take(ctx, call)
	if err != nil {
		if ctx.Err() != nil {
			s.abandon(ctx, call)
		}
		return fmt.Errorf("handing over image %s: %w", digest, err)
	}
	_, err = expect[*doneMsg](r)
	return err
}

// stream writes the archive to the engine's pipe, until ctx ends.
func (c *Client) stream(ctx context.Context, a *archive, passed []*os.File, digest string) error {
	defer closeAll(passed)
	if len(passed) != 1 {
		return fmt.Errorf("%w: an import with %d descriptors", ErrProtocol, len(passed))
	}
	w, err := pollable(passed[0])
	if err != nil {
		return err
	}
	closeAll(passed)
	defer func() { _ = w.Close() }()
	defer waitClosed(ctx, func() { _ = w.Close() })()
	err = a.write(w, func(sent, total int64) {
		if c.cfg.Progress != nil {
			c.cfg.Progress(digest, sent, total)
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
