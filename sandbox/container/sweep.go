//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
)

const (
	// labelUsed is when an image was last asked for, as seconds since 1970.
	labelUsed = "sandboxd.dev/used"
	// sweepEvery is how often images are looked through, and so how much of
	// their use an engine that is killed forgets.
	sweepEvery = time.Hour
)

// use notes that an image was asked for, until the next sweep writes it down:
// a start is not to wait for that.
func (h *host) use(dgst string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used[imageName(dgst)] = time.Now()
}

// sweeps looks through the images now and then, and once more when ctx ends.
func (h *host) sweeps(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
		bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupBound/3)
		if err := h.sweep(bound, time.Now()); err != nil {
			h.cfg.Logger.Warn("looking through the images failed", "error", err)
		}
		cancel()
		if ctx.Err() != nil {
			return
		}
	}
}

// sweep writes down which images were used, and removes those of this instance
// that nobody asked for within Config.KeepImages, with all that no other image
// shares. What runs of one keeps its files. A caller that still has the image
// hands it over again.
func (h *host) sweep(ctx context.Context, now time.Time) error {
	ctx = h.ctx(ctx)
	store := h.cl.ImageService()
	all, err := store.List(ctx, h.filter())
	if err != nil {
		return fmt.Errorf("container: list images: %w", err)
	}
	var errs []error
	for _, img := range all {
		at, fresh := h.lastUse(img)
		switch {
		case h.cfg.KeepImages > 0 && now.Sub(at) > h.cfg.KeepImages:
			err = h.removeUnused(ctx, img.Name, at)
		case fresh:
			img.Labels[labelUsed] = fmt.Sprint(at.Unix())
			_, err = store.Update(ctx, images.Image{Name: img.Name, Labels: img.Labels}, "labels."+labelUsed)
			err = ignoreNotFound(err)
		default:
			err = nil
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container: image %s: %w", img.Target.Digest, err))
		}
	}
	return errors.Join(errs...)
}

// lastUse is when an image was last asked for, and whether its record does not
// say so yet.
func (h *host) lastUse(img images.Image) (at time.Time, fresh bool) {
	at = img.CreatedAt
	var unix int64
	if _, err := fmt.Sscan(img.Labels[labelUsed], &unix); err == nil && time.Unix(unix, 0).After(at) {
		at = time.Unix(unix, 0)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if used := h.used[img.Name]; used.After(at) {
		return used, used.Sub(at) >= time.Second
	}
	return at, false
}

// removeUnused removes an image's record unless somebody asks for it meanwhile;
// containerd's collector then takes what nothing else holds.
func (h *host) removeUnused(ctx context.Context, name string, at time.Time) error {
	h.mu.Lock()
	asked := h.used[name].After(at)
	if !asked {
		delete(h.used, name)
	}
	h.mu.Unlock()
	if asked {
		return nil
	}
	err := h.cl.ImageService().Delete(ctx, name, images.SynchronousDelete())
	if err == nil {
		h.cfg.Logger.Info("removed an image that nobody used", "image", name, "last", at.UTC())
	} else if errdefs.IsNotFound(err) {
		err = nil
	}
	return err
}
