//go:build linux

package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	"golang.org/x/sys/unix"

	"github.com/sandboxd/sandboxd/sandbox"
)

// topName is a box's own layer, in its folder.
const topName = "top"

// labelSnapshot makes containerd's collector keep the snapshot that a
// container's label names: the topmost of its image's layers.
const labelSnapshot = "containerd.io/gc.ref.snapshot." + snapshotter

// maxMountData is the kernel's bound on a mount's options.
const maxMountData = 4095

// lower finds the folders of an image's layers, the topmost first, and the name
// of the topmost's snapshot, which holds the others. Where an image has been
// used before, containerd is only asked whether it is still there, while there is
// nothing to undo yet: a layer's folder is never another layer's.
func (h *host) lower(ctx context.Context, dgst string) (layers, error) {
	img, err := h.image(ctx, dgst)
	if err != nil {
		return layers{}, err
	}
	h.mu.Lock()
	known, ok := h.layers[dgst]
	h.mu.Unlock()
	if ok {
		return known, nil
	}
	diffs, err := img.RootFS(ctx)
	if err != nil {
		return layers{}, fmt.Errorf("read image: %w", err)
	}
	l := layers{snapshot: identity.ChainID(diffs).String()}
	if l.folders, err = h.folders(ctx, l.snapshot); err != nil {
		return layers{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.layers[dgst] = l
	return l, nil
}

// image is an image's record, which has to be there.
func (h *host) image(ctx context.Context, dgst string) (client.Image, error) {
	img, err := h.cl.GetImage(ctx, imageName(dgst))
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("%w: image %s is not here (any more): import it", sandbox.ErrInvalid, dgst)
	}
	return img, err
}

// layers are an image's, as they lie on the disk.
type layers struct {
	snapshot string
	folders  []string
}

// known reports whether the image's layers have been found before.
func (h *host) known(dgst string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, ok := h.layers[dgst]
	return ok
}

// forgetLayers has the next start of the image ask containerd.
func (h *host) forgetLayers(dgst string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.layers, dgst)
}

// folders asks the snapshotter where a snapshot's layers are, by a view of it
// that exists for a moment.
func (h *host) folders(ctx context.Context, snapshot string) (_ []string, err error) {
	view, err := newID("sb-" + h.cfg.Instance)
	if err != nil {
		return nil, err
	}
	sn := h.cl.SnapshotService(snapshotter)
	ms, err := sn.View(ctx, view, snapshot, snapshots.WithLabels(h.labels))
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("%w: image %s is not unpacked", sandbox.ErrInvalid, snapshot)
	}
	if err != nil {
		return nil, fmt.Errorf("find layers: %w", err)
	}
	defer func() { err = errors.Join(err, ignoreNotFound(sn.Remove(context.WithoutCancel(ctx), view))) }()
	if len(ms) == 1 && ms[0].Type == "bind" { // a single layer
		return []string{ms[0].Source}, nil
	}
	if len(ms) == 1 && ms[0].Type == "overlay" {
		for _, o := range ms[0].Options {
			if list, ok := strings.CutPrefix(o, "lowerdir="); ok {
				return strings.Split(list, ":"), nil
			}
		}
	}
	return nil, fmt.Errorf("find layers: the snapshotter gave no overlay but %d mounts", len(ms))
}

// mountRootfs mounts the image's layers, their ids shifted to the box's, in
// dir/mnt. On top lies an empty layer in dir, in which the runtime makes the
// mount points; the guest sees the root read-only. containerd's shim could
// mount, too, but it keeps the mapped layers in the host's temporary folder
// meanwhile, where a kill in between leaves them, and nobody could tell whose
// they are. In dir, a Collect finds them.
func mountRootfs(l layers, k *kit, dir string) (mount.Mount, error) {
	mnt := filepath.Join(dir, "mnt")
	top, err := topLayer(filepath.Join(dir, topName), int(k.ids))
	if err != nil {
		return mount.Mount{}, err
	}
	if err := os.MkdirAll(mnt, 0o700); err != nil {
		return mount.Mount{}, err
	}
	var lower []string
	for i, layer := range l.folders {
		at := filepath.Join(mnt, "layer"+strconv.Itoa(i))
		if err := mapLayer(layer, at, k.idmap); err != nil {
			return mount.Mount{}, fmt.Errorf("layer %d: %w", i, err)
		}
		lower = append(lower, at)
	}
	at := filepath.Join(mnt, "root")
	if err := os.Mkdir(at, 0o700); err != nil {
		return mount.Mount{}, err
	}
	opts := strings.Join(append(top, "lowerdir="+strings.Join(lower, ":")), ",")
	if len(opts) > maxMountData {
		return mount.Mount{}, fmt.Errorf("%w: the image has too many layers", sandbox.ErrInvalid)
	}
	if err := unix.Mount("overlay", at, "overlay", unix.MS_NODEV, opts); err != nil {
		return mount.Mount{}, fmt.Errorf("mount root: %w", err)
	}
	return mount.Mount{Type: "bind", Source: at, Options: []string{"bind", "rw"}}, nil
}

// topLayer makes a box's own, empty layer, which belongs to the box's root, and
// returns the overlay's options for it.
func topLayer(dir string, owner int) ([]string, error) {
	upper, work := filepath.Join(dir, "upper"), filepath.Join(dir, "work")
	for _, d := range []string{dir, upper, work} {
		if err := os.Mkdir(d, 0o700); err != nil {
			return nil, err
		}
	}
	// It is the root folder that the guest sees.
	if err := errors.Join(os.Chmod(upper, 0o755), os.Chown(upper, owner, owner)); err != nil { //nolint:gosec // as said
		return nil, err
	}
	opts := []string{"upperdir=" + upper, "workdir=" + work}
	// An index of the lower layers would tie them to one overlay.
	if _, err := os.Stat("/sys/module/overlay/parameters/index"); err == nil {
		opts = append(opts, "index=off")
	}
	return opts, nil
}

// mapLayer attaches a read-only, id-mapped copy of a layer at a new folder.
func mapLayer(layer, at string, idmap *os.File) error {
	fd, err := unix.OpenTree(unix.AT_FDCWD, layer, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // the attached mount outlives it
	attr := &unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_IDMAP,
		Propagation: unix.MS_PRIVATE, Userns_fd: uint64(idmap.Fd()),
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, attr); err != nil {
		return fmt.Errorf("map ids: %w", err)
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	return unix.MoveMount(fd, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
