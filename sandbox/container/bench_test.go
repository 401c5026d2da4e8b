//go:build linux

package container

import "testing"

// BenchmarkStart is from the request to the guest's first answer.
func BenchmarkStart(b *testing.B) {
	for _, tier := range tiers {
		for _, gateway := range []bool{false, true} {
			name := tier.String()
			if gateway {
				name += "+gateway"
			}
			b.Run(name, func(b *testing.B) {
				h := newHost(b)
				for b.Loop() {
					req := request("cat")
					req.Spec.Isolation, req.Gateway = tier, gateway
					req.Spec.Image.Digest = lab.digest
					box, f, err := h.Start(b.Context(), req)
					if err != nil {
						b.Fatal(err)
					}
					if _, err := f.Stdin.Write([]byte("x")); err != nil {
						b.Fatal(err)
					}
					var one [1]byte
					if _, err := f.Stdout.Read(one[:]); err != nil {
						b.Fatal(err)
					}
					b.StopTimer()
					if err := box.Stop(b.Context()); err != nil {
						b.Fatal(err)
					}
					if err := closeFiles(f); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
			})
		}
	}
}
