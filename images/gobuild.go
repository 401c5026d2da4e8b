package images

import (
	"context"
	"debug/buildinfo"
	"debug/elf"
	"io"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// GoModule pins one Go module by the hash of the checksum database.
type GoModule struct {
	Path    string `json:"path"`
	Version string `json:"version"`
	Sum     string `json:"sum"` // h1:…
}

// GoLock is what a Go program was built from.
type GoLock struct {
	// Toolchain is the Go release that built it, as in go1.26.6.
	Toolchain string `json:"toolchain"`
	// Modules are all that are linked in, the program's own first.
	Modules []GoModule `json:"modules"`
}

const (
	goRoot    = "/usr/local/go"
	goProgram = "/app/program"
)

// makeGo builds a Go program inside a sandbox, with this host's toolchain and
// without cgo, into an image that holds it, the distribution's certificates and
// time zones, and nothing else. Its compiler runs no code of the modules.
func (b *Builder) makeGo(ctx context.Context, w *work, ref Ref, lock *Lock) (product, error) {
	if len(b.cfg.ExtraPackages) > 0 {
		return product{}, fail(ErrRefused, "a Go program's image has no room for distribution packages", "leave them out")
	}
	basePins, _ := splitPins(pinsOf(lock))
	base, err := b.base(ctx, basePins, false)
	if err != nil {
		return product{}, err
	}
	version := ref.Version
	if lock != nil {
		version = lock.Version
	}
	if version == "" {
		version = "latest"
	}
	done := b.step("package", "building "+ref.Name+"@"+version)
	bin, err := b.goBuild(ctx, w, base, ref.Name+"@"+version)
	if err != nil {
		return product{}, err
	}
	built, err := readGoBuild(bin, ref.Name)
	if err != nil {
		return product{}, err
	}
	if lock != nil && (lock.Go == nil || built.Toolchain != lock.Go.Toolchain || !slices.Equal(built.Modules, lock.Go.Modules)) {
		return product{}, fail(ErrRefused, "the modules or the Go release are not the locked ones", "use "+quoted(lock.toolchain())+", or look at what changed and update the lock")
	}
	layer, err := b.packGo(ctx, w, base, bin)
	if err != nil {
		return product{}, err
	}
	done(layer.Size)
	main := built.Modules[0]
	p := product{
		name: ref.Name, version: main.Version, integrity: main.Sum, layers: []blob{layer}, debs: base.Debs,
		entry: []string{goProgram}, env: goEnv(), dir: userHome, pin: func(l *Lock) { l.Go = &built },
	}
	for _, m := range built.Modules {
		p.parts = append(p.parts, part{m.Path, m.Version, "pkg:golang/" + m.Path + "@" + m.Version, "", ""})
	}
	p.parts = append(p.parts, part{"go", built.Toolchain, "pkg:golang/stdlib@" + strings.TrimPrefix(built.Toolchain, "go"), cdx.HashAlgorithm(""), ""})
	return p, nil
}

// goEnv is what Go servers get.
func goEnv() []string {
	return []string{"PATH=/app", "HOME=" + userHome, "LANG=C.UTF-8", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"}
}

// goBuild runs go install inside and returns the file that it made.
func (b *Builder) goBuild(ctx context.Context, w *work, base layerRecord, target string) (string, error) {
	inside, err := b.confine()
	if err != nil {
		return "", err
	}
	if !inside {
		return "", fail(ErrUnconfined, "Go programs are built in a sandbox only", "leave --build-unsandboxed out, and start the engine")
	}
	client, err := b.cfg.Outlet.Client(ctx, KindGo)
	if err != nil {
		return "", err
	}
	dirs := make([]string, 3)
	for i, name := range []string{"go-bin", "go-cache", "go-settings"} {
		if dirs[i], err = w.sub(name); err != nil {
			return "", err
		}
	}
	if err := os.Mkdir(filepath.Join(dirs[1], "tmp"), 0o700); err != nil {
		return "", err
	}
	run := confined{
		ecosystem: KindGo, layers: []blob{base.Layer}, dir: insideCache,
		shown: []shown{
			{dirs[0], insideTree, true}, {dirs[1], insideCache, true}, {dirs[2], insideSettings, false}, {client.Folders["goroot"], goRoot, false},
		},
		args: []string{goRoot + "/bin/go", "install", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "--", target},
		env: append([]string{
			"PATH=" + goRoot + "/bin:/usr/bin", "HOME=" + userHome, "LC_ALL=C", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOWORK=off", "GOENV=off",
			"GOFLAGS=-modcacherw", "GOBIN=" + insideTree, "GOMODCACHE=" + insideCache + "/mod", "GOCACHE=" + insideCache + "/build",
			"GOTMPDIR=" + insideCache + "/tmp", "GOTELEMETRY=off", "GOVCS=*:off",
		}, client.Secret...),
	}
	for _, k := range sortedKeys(client.Settings) {
		run.env = append(run.env, k+"="+client.Settings[k])
	}
	if client.Certificates != nil {
		if err := os.WriteFile(filepath.Join(dirs[2], "ca.pem"), client.Certificates, 0o600); err != nil {
			return "", err
		}
		run.env = append(run.env, "SSL_CERT_FILE="+path.Join(insideSettings, "ca.pem"))
	}
	res, err := b.watched(ctx, target, "package", dirs[:2], func(ctx context.Context) (result, error) { return b.runConfined(ctx, w, run) })
	if err != nil {
		return "", goError(err, res, target)
	}
	return onlyFile(dirs[0])
}

// onlyFile is the one regular file in a folder that a stranger filled.
func onlyFile(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) != 1 || !entries[0].Type().IsRegular() {
		return "", fail(ErrRefused, "the build left something else than one program", "")
	}
	return filepath.Join(dir, entries[0].Name()), nil
}

// maxProgram bounds a Go program, in bytes.
const maxProgram = 512 << 20

var (
	sumRE       = regexp.MustCompile(`^h1:[A-Za-z0-9+/]{43}=$`)
	toolchainRE = regexp.MustCompile(`^go1\.\d+(\.\d+|rc\d+|beta\d+)?([ -].*)?$`)
)

// readGoBuild reads what the program says of itself, and checks that it is a
// static one for this machine.
func readGoBuild(file, pkg string) (GoLock, error) {
	bad := func(what string) (GoLock, error) {
		return GoLock{}, fail(ErrRefused, "the program built of "+pkg+" "+what, "")
	}
	if info, err := os.Stat(file); err != nil || info.Size() > maxProgram {
		return bad("is over 512 MiB")
	}
	f, err := elf.Open(file)
	if err != nil {
		return bad("is no ELF file")
	}
	defer f.Close() //nolint:errcheck // only read from
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return bad("needs a dynamic linker")
		}
	}
	info, err := buildinfo.ReadFile(file)
	if err != nil || info.Path != pkg || !strings.HasPrefix(pkg+"/", info.Main.Path+"/") {
		return bad("is not that package's")
	}
	out := GoLock{Toolchain: info.GoVersion, Modules: []GoModule{{info.Main.Path, info.Main.Version, info.Main.Sum}}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			return bad("replaces the module " + quoted(m.Path))
		}
		out.Modules = append(out.Modules, GoModule{m.Path, m.Version, m.Sum})
	}
	if what := out.wrong(); what != "" {
		return bad(what)
	}
	return out, nil
}

func (g *GoLock) wrong() string {
	if len(g.Modules) == 0 || len(g.Modules) > 5000 || !toolchainRE.MatchString(g.Toolchain) {
		return "does not pin its modules or its Go"
	}
	for _, m := range g.Modules {
		if !sumRE.MatchString(m.Sum) || !goPackageRE.MatchString(m.Path) || !goVersionRE.MatchString(m.Version) {
			return "does not pin the module " + quoted(m.Path)
		}
	}
	return ""
}

func (l *Lock) toolchain() string {
	if l.Go == nil {
		return ""
	}
	return l.Go.Toolchain
}

// checkGo looks at a lock's Go part.
func (l *Lock) checkGo(ref Ref) (string, error) {
	switch {
	case ref.Name != l.Name:
		return "locks another package", nil
	case l.Go == nil || len(l.Base) == 0:
		return "does not pin its modules or the base", nil
	case l.Go.Modules[0].Version != l.Version:
		return "says one version and locks another", nil
	}
	return l.Go.wrong(), nil
}

// packGo writes the program with what a static one expects around it.
func (b *Builder) packGo(ctx context.Context, w *work, base layerRecord, bin string) (blob, error) {
	root, err := readRootfs(ctx, b.st.blobPath(base.Layer.Digest))
	if err != nil {
		return blob{}, err
	}
	for name := range root.entries {
		if !kept(name) {
			delete(root.entries, name)
		}
	}
	root.parents()
	f, err := os.Open(bin)
	if err != nil {
		return blob{}, err
	}
	defer f.Close() //nolint:errcheck // only read from
	data, err := io.ReadAll(io.LimitReader(f, maxProgram))
	if err != nil {
		return blob{}, err
	}
	root.entries[goProgram[1:]] = &entry{typ: '0', mode: 0o555, data: data}
	file := filepath.Join(w.dir, "layer")
	layer, err := root.write(file)
	if err != nil {
		return blob{}, err
	}
	return layer, b.st.adopt(file, layer)
}

// kept says what of the base a static program is given: who it is, where names
// and hours come from, and whom to trust; no library and no program.
func kept(name string) bool {
	if slices.Contains([]string{"app", "dev", "proc", "sys", "run", "tmp", "var/tmp", userHome[1:]}, name) {
		return true
	}
	for _, dir := range []string{"etc/ssl/", "usr/share/zoneinfo/"} {
		if strings.HasPrefix(name, dir) {
			return true
		}
	}
	return slices.Contains([]string{
		"etc/passwd", "etc/group", "etc/nsswitch.conf", "etc/hosts", "etc/hostname", "etc/resolv.conf", "etc/localtime", "etc/services", "etc/protocols",
	}, name)
}

// goError makes one clear line of the go command's failure.
func goError(err error, res result, target string) error {
	if !ranAndFailed(err) {
		return err
	}
	text := string(res.stderr)
	said := text
	if i := strings.Index(text, "go: "); i >= 0 && !strings.HasPrefix(text[i:], "go: downloading") {
		said = text[i:]
	} else if i := strings.LastIndex(text, "\ngo: "); i >= 0 {
		said = text[i+1:]
	}
	said, _, _ = strings.Cut(urlRE.ReplaceAllString(said, "<address>"), "\n")
	switch {
	case strings.Contains(text, "404 Not Found"), strings.Contains(text, "unknown revision"), strings.Contains(text, "no matching versions"):
		return fail(ErrNotFound, "the configured module proxy does not have "+target, "check its path and version")
	case strings.Contains(text, "SECURITY ERROR"), strings.Contains(text, "checksum mismatch"):
		return fail(ErrRefused, "a module of "+target+" does not have the hash that the checksum database promises", "do not use it")
	case strings.Contains(text, "/sumdb/"), strings.Contains(text, "verifying module"):
		return fail(ErrNetwork, "the checksum database could not be asked about "+target, "if your modules are not in it, say so as your go command wants: go env -w GONOSUMDB=…")
	case strings.Contains(text, "dial tcp"), strings.Contains(text, "no such host"), strings.Contains(text, "x509:"):
		return fail(ErrNetwork, "the configured module proxy could not be reached", "check GOPROXY; a proxy on a private address needs registries.go.trusted_cidrs in the operator's settings")
	case strings.Contains(text, "go.mod requires go >="):
		return fail(ErrTool, target+" needs a newer Go: "+quoted(lastLine(res.stderr)), "install it on this host, whose toolchain builds")
	}
	return fail(ErrTool, status("go", err)+": "+quoted(said), "")
}
