//go:build linux

package container

import (
	"context"
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

// labelSnapshot makes containerd's collector keep the snapshot that a
// container's label names. (A container's own snapshot would be mounted by the
// shim, see mountRootfs.)
const labelSnapshot = "containerd.io/gc.ref.snapshot." + snapshotter

// maxMountData is the kernel's bound on a mount's options.
const maxMountData = 4095

// rootfs makes a writable snapshot of the image for the box and mounts it in
// dir, the image's ids shifted to the box's. The writable layer holds only the
// mount points that the runtime makes; the guest sees the root read-only.
func (h *host) rootfs(ctx context.Context, img client.Image, p plan, dir string) (mount.Mount, error) {
	diffs, err := img.RootFS(ctx)
	if err != nil {
		return mount.Mount{}, fmt.Errorf("read image: %w", err)
	}
	maps := idMappings(p.hostID)
	ms, err := h.cl.SnapshotService(snapshotter).Prepare(ctx, p.id, identity.ChainID(diffs).String(),
		client.WithUserNSRemapperLabels(maps, maps), snapshots.WithLabels(h.labels))
	if errdefs.IsNotFound(err) {
		return mount.Mount{}, fmt.Errorf("%w: image %s is not unpacked", sandbox.ErrInvalid, p.spec.Image.Digest)
	}
	if err != nil {
		return mount.Mount{}, fmt.Errorf("prepare snapshot: %w", err)
	}
	at, err := mountRootfs(ms, p.hostID, dir)
	if err != nil {
		return mount.Mount{}, fmt.Errorf("mount root: %w", err)
	}
	return mount.Mount{Type: "bind", Source: at, Options: []string{"bind", "rw"}}, nil
}

// mountRootfs mounts an overlay whose lower layers are id-mapped. containerd's
// shim could too, but it keeps the mapped layers in the host's temporary
// folder meanwhile, where a kill in between leaves them, and nobody could tell
// whose they are. In dir, a Collect finds them.
func mountRootfs(ms []mount.Mount, first uint32, dir string) (string, error) {
	if len(ms) != 1 || ms[0].Type != "overlay" {
		return "", fmt.Errorf("the snapshotter gave no overlay but %d mounts", len(ms))
	}
	ids := fmt.Sprintf("0:%d:%d", first, idRange)
	idmap, err := mount.GetUsernsFD(ids, ids)
	if err != nil {
		return "", fmt.Errorf("map ids: %w", err)
	}
	defer idmap.Close() //nolint:errcheck // the mounts hold the namespace
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	var data, lower []string
	for _, o := range ms[0].Options {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "uidmap", "gidmap": // done here
		case "lowerdir":
			for i, layer := range strings.Split(value, ":") {
				at := filepath.Join(dir, "layer"+strconv.Itoa(i))
				if err := mapLayer(layer, at, idmap); err != nil {
					return "", fmt.Errorf("layer %d: %w", i, err)
				}
				lower = append(lower, at)
			}
		default:
			data = append(data, o)
		}
	}
	at := filepath.Join(dir, "root")
	if err := os.Mkdir(at, 0o700); err != nil {
		return "", err
	}
	opts := strings.Join(append(data, "lowerdir="+strings.Join(lower, ":")), ",")
	if len(opts) > maxMountData {
		return "", fmt.Errorf("%w: the image has too many layers", sandbox.ErrInvalid)
	}
	if err := unix.Mount("overlay", at, "overlay", unix.MS_NODEV, opts); err != nil {
		return "", err
	}
	return at, nil
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
