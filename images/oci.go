package images

import (
	"encoding/json"
	"runtime"
	"strconv"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	v1 "github.com/opencontainers/image-spec/specs-go/v1"
)

// imageEnv is what every server gets. npm's cache and its curiosity about new
// versions are set for the servers that spawn it. Programs made with .NET, which
// some packages carry, end at once where there is no ICU unless they are told.
func imageEnv() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin:" + appDir + "/node_modules/.bin",
		"HOME=" + userHome,
		"LANG=C.UTF-8",
		"SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt",
		"NO_UPDATE_NOTIFIER=1",
		"npm_config_cache=/tmp/.npm",
		"npm_config_update_notifier=false",
		"DOTNET_SYSTEM_GLOBALIZATION_INVARIANT=1",
	}
}

func hostPlatform() v1.Platform { return v1.Platform{OS: "linux", Architecture: runtime.GOARCH} }

// imageConfig is the OCI image configuration. Nothing in it depends on when or
// where it was made.
func imageConfig(layers []blob, entry, cmd, env []string, dir string) ([]byte, error) {
	created := layerTime
	img := v1.Image{Created: &created, Platform: hostPlatform()}
	img.Config = v1.ImageConfig{
		User: strconv.Itoa(userID) + ":" + strconv.Itoa(userID),
		Env:  env, Entrypoint: entry, Cmd: cmd, WorkingDir: dir,
	}
	img.RootFS.Type = "layers"
	for _, l := range layers {
		// Uncompressed: the layer's digest is that of its content.
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, digest.Digest(l.Digest))
	}
	return json.Marshal(img)
}

// imageManifest is the OCI manifest. Its annotations name what is in it, not
// what was asked for, so that two ways to ask give one digest.
func imageManifest(config blob, layers []blob, name, version string) ([]byte, error) {
	m := v1.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: v1.MediaTypeImageManifest,
		Config: descriptor(v1.MediaTypeImageConfig, config),
		Annotations: map[string]string{
			v1.AnnotationTitle: name, v1.AnnotationVersion: version,
		},
	}
	for _, l := range layers {
		m.Layers = append(m.Layers, descriptor(v1.MediaTypeImageLayer, l))
	}
	return json.Marshal(m)
}

func descriptor(mediaType string, b blob) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Digest: digest.Digest(b.Digest), Size: b.Size}
}
