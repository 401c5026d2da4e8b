package images

import (
	"path"
	"strings"
)

const mountForms = "write -v SOURCE:TARGET[:ro] with a folder or file of this host"

// volume takes SOURCE:TARGET[:OPTIONS]. Without ro it can be written to, as
// with docker.
func (p *parsed) volume(spec string) error {
	parts := strings.Split(spec, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return fail(ErrReference, "the volume "+quoted(spec)+" names no folder of this host", mountForms)
	}
	rw := true
	if len(parts) == 3 {
		for o := range strings.SplitSeq(parts[2], ",") {
			switch o {
			case "ro", "readonly":
				rw = false
			case "rw", "z", "Z", "cached", "delegated", "consistent", "private", "rprivate":
			default:
				return fail(ErrReference, "the volume option "+quoted(o)+" is not taken", "use ro or rw")
			}
		}
	}
	if !strings.ContainsAny(parts[0], "/.~$") {
		return fail(ErrReference, "the named volume "+quoted(parts[0])+" belongs to a container engine", "make a folder for the server, and mount that")
	}
	return p.mount(parts[0], parts[1], rw)
}

// mountFlag takes type=bind,source=…,target=…[,readonly].
func (p *parsed) mountFlag(spec string) error {
	kind, source, target, rw := "volume", "", "", true
	for o := range strings.SplitSeq(spec, ",") {
		k, v, has := strings.Cut(o, "=")
		switch k {
		case "type":
			kind = v
		case "source", "src":
			source = v
		case "target", "dst", "destination":
			target = v
		case "readonly", "ro":
			rw = has && v != "true" && v != "1"
		case "bind-propagation", "consistency":
		default:
			return fail(ErrReference, "the mount option "+quoted(k)+" is not taken", "use type, source, target and readonly")
		}
	}
	if kind == "tmpfs" && path.Clean(target) == "/tmp" {
		return nil
	}
	if kind != "bind" {
		return fail(ErrReference, "a mount of type "+quoted(kind)+" is not taken", "mount a folder: type=bind,source=FOLDER,target=PATH")
	}
	return p.mount(source, target, rw)
}

// hostParts are folders that are the host itself rather than someone's files.
var hostParts = []string{"/proc", "/sys", "/dev", "/run", "/var/run", "/boot", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}

func (p *parsed) mount(source, target string, rw bool) error {
	clean := path.Clean(source)
	switch {
	case source == "" || strings.IndexByte(source+target, 0) >= 0:
		return fail(ErrReference, "a mount without a source", mountForms)
	case strings.ContainsRune(source, '$'):
		return fail(ErrReference, "the mount's source "+quoted(source)+" holds a variable", "write the path: no shell reads this line")
	case strings.HasPrefix(source, "~"):
		return fail(ErrReference, "the mount's source "+quoted(source)+" begins with ~", "write the path: no shell reads this line")
	case !path.IsAbs(target) || path.Clean(target) == "/":
		return fail(ErrReference, "the mount's target "+quoted(target)+" is not an absolute path below /", mountForms)
	case strings.HasSuffix(clean, ".sock"):
		return fail(ErrReference, "a mounted socket such as "+quoted(source)+" gives the host away", "leave it out; allow_local_endpoint in a policy opens one port of this host")
	case clean == "/" || clean == "/etc" || clean == "/root" || clean == "/home":
		return fail(ErrReference, "mounting "+quoted(source)+" would show the whole host", "mount the one folder that the server needs")
	}
	for _, h := range hostParts {
		if clean == h || strings.HasPrefix(clean, h+"/") {
			return fail(ErrReference, "mounting "+quoted(source)+" would show the host's own state", "mount the one folder that the server needs")
		}
	}
	p.Mounts = append(p.Mounts, CommandMount{Source: source, Target: path.Clean(target), ReadWrite: rw})
	return nil
}
