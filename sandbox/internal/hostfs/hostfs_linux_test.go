package hostfs

import (
	"os"
	"testing"
)

func TestKernelInterfacesHoldNoData(t *testing.T) {
	for path, want := range map[string]bool{t.TempDir(): true, "/proc": false, "/proc/self": false, "/sys": false, "/dev/pts": false} {
		f, err := os.Open(path)
		if err != nil {
			t.Logf("%s: %v", path, err)
			continue
		}
		if err := HoldsData(int(f.Fd())); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
		_ = f.Close()
	}
}

func TestMountIDTellsMountsApart(t *testing.T) {
	id := func(path string) uint64 {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		n, err := MountID(f)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if id("/") == id("/proc") || id("/proc") != id("/proc/self") {
		t.Error("mount ids do not follow mounts")
	}
}
