package images

import (
	"path"
	"strings"
)

// containerCommand takes docker run and its kin. What the sandbox gives anyway
// (no terminal, a user of its own, no capabilities) is dropped; what would
// open it is refused.
func containerCommand(program string, words []string) (parsed, error) {
	if len(words) > 0 && words[0] == "container" {
		words = words[1:]
	}
	if len(words) == 0 || words[0] != "run" {
		return parsed{}, fail(ErrReference, program+": only "+program+" run IMAGE names a server", "give the server's own command")
	}
	var p parsed
	f := flagSet{
		program: program + " run",
		ignored: []string{
			"-i", "--interactive", "-t", "--tty", "--rm", "--init", "-q", "--quiet", "--read-only", "--no-healthcheck", "--disable-content-trust",
		},
		ignoredValued: []string{
			"--name", "--pull", "-h", "--hostname", "-l", "--label", "-u", "--user", "-a", "--attach", "--cap-drop", "--restart",
			"--log-driver", "--log-opt", "--annotation", "--cidfile", "--detach-keys", "--stop-signal",
		},
		plain: []string{"--privileged", "-d", "--detach", "-P", "--publish-all"},
		valued: []string{
			"-e", "--env", "--env-file", "-v", "--volume", "--mount", "--network", "--net", "-w", "--workdir", "--entrypoint", "--platform", "--security-opt", "--tmpfs",
		},
		take:   p.containerFlag,
		refuse: refusedContainerFlag,
	}
	rest, err := f.parse(words[1:])
	if err != nil {
		return parsed{}, err
	}
	if len(rest) == 0 {
		return parsed{}, fail(ErrReference, program+" run: no image is named", commandForms)
	}
	if rest[0] == "" || strings.ContainsAny(rest[0], " \t\n\x00#") || strings.Contains(rest[0], "://") {
		return parsed{}, fail(ErrReference, program+" run: "+quoted(rest[0])+" is no image", "write NAME:TAG or NAME@sha256:…")
	}
	p.ref, p.Args = "oci:"+rest[0], rest[1:]
	return p, nil
}

func (p *parsed) containerFlag(name, value string) error {
	switch name {
	case "--privileged":
		return fail(ErrReference, "--privileged gives the host away", "leave it out: a server in a sandbox has no use for it")
	case "-d", "--detach":
		return fail(ErrReference, "a server in the background has no stdin and stdout", "leave "+name+" out")
	case "-P", "--publish-all":
		return fail(ErrReference, "a server's ports are not published: it is spoken to on stdin and stdout", "leave "+name+" out")
	case "-e", "--env":
		return p.containerEnv(value)
	case "--env-file":
		p.EnvFiles = append(p.EnvFiles, value)
	case "-v", "--volume":
		return p.volume(value)
	case "--mount":
		return p.mountFlag(value)
	case "--network", "--net":
		return p.network(value)
	case "-w", "--workdir":
		if !path.IsAbs(value) {
			return fail(ErrReference, "the working folder "+quoted(value)+" is not absolute", "write a path inside the image")
		}
		p.Dir = path.Clean(value)
	case "--entrypoint":
		if value == "" {
			return fail(ErrReference, "an empty --entrypoint leaves nothing to start", "name the program")
		}
		p.Entrypoint = []string{value}
	case "--platform":
		if want := platform(); value != want && value != "linux" && !strings.HasPrefix(value, want+"/") {
			return fail(ErrReference, "the platform "+quoted(value)+" does not run here", "this host is "+want)
		}
	case "--security-opt":
		if value != "no-new-privileges" && value != "no-new-privileges:true" && value != "no-new-privileges=true" {
			return fail(ErrReference, "--security-opt "+quoted(value)+" would loosen the sandbox", "leave it out")
		}
	case "--tmpfs":
		if dir, _, _ := strings.Cut(value, ":"); dir != "/tmp" {
			return fail(ErrReference, "only /tmp is a file system in memory here", "leave --tmpfs out")
		}
	}
	return nil
}

func (p *parsed) containerEnv(kv string) error {
	k, v, has := strings.Cut(kv, "=")
	if !envNameRE.MatchString(k) {
		return fail(ErrReference, "-e: "+quoted(k)+" is no variable's name", "write NAME=VALUE, or NAME to pass a variable on")
	}
	p.Env = append(p.Env, CommandVar{Name: k, Value: v, Pass: !has})
	return nil
}

func (p *parsed) network(value string) error {
	switch value {
	case "none":
		p.NoNetwork = true
	case "bridge", "default":
		// What it may reach is for the policy to say.
	case "host":
		return fail(ErrReference, "--network host is the host's own network", "leave it out; allow_local_endpoint in a policy opens one port of this host")
	default:
		return fail(ErrReference, "--network "+quoted(value)+" joins others' network", "leave it out; a policy says what the server may reach")
	}
	return nil
}

// refusedContainerFlag says why a known flag is refused.
func refusedContainerFlag(name string) (why, next string) {
	switch name {
	case "--cap-add", "--device", "--gpus", "--device-cgroup-rule", "--group-add", "--sysctl":
		return "it would open the sandbox to the host", "leave it out"
	case "--pid", "--ipc", "--uts", "--userns", "--cgroupns", "--cgroup-parent":
		return "it would share the host's name spaces", "leave it out"
	case "-p", "--publish", "--expose":
		return "a server's ports are not published: it is spoken to on stdin and stdout", "leave it out"
	case "--volumes-from", "--link", "--volume-driver":
		return "it reaches into another container", "mount a folder with -v"
	case "-m", "--memory", "--memory-swap", "-c", "--cpu-shares", "--cpus", "--pids-limit", "--ulimit", "--shm-size", "--oom-kill-disable":
		return "limits belong to a policy", "write limits: {memory: 512MiB} there"
	case "--add-host", "--dns", "--dns-search", "--ip", "--mac-address":
		return "the guard answers names", "write the hosts into a policy"
	case "--runtime", "--isolation":
		return "the tier is chosen outside", "use --isolation container or gvisor of sandboxd"
	}
	return "", ""
}
