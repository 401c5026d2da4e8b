package wasip1

import (
	"context"
	"fmt"
	"sort"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
)

// ModuleName is the import module of every function that is offered.
const ModuleName = "wasi_snapshot_preview1"

// hostFunc is one function: it returns an Errno, as all but proc_exit do.
type hostFunc func(s *System, m memory, p params) Errno

// export is a function with its parameters' types: i is i32, I is i64.
type export struct {
	params string
	fn     hostFunc
}

// exports lists every function by name.
func exports() map[string]export {
	e := map[string]export{
		"args_get":          {"ii", argsGet},
		"args_sizes_get":    {"ii", argsSizesGet},
		"environ_get":       {"ii", environGet},
		"environ_sizes_get": {"ii", environSizesGet},
		"clock_res_get":     {"ii", clockResGet},
		"clock_time_get":    {"iIi", clockTimeGet},
		"random_get":        {"ii", randomGet},
		"sched_yield":       {"", schedYield},
		"proc_raise":        {"i", notOffered},
		"poll_oneoff":       {"iiii", pollOneoff},

		"fd_advise":             {"iIIi", fdAdvise},
		"fd_allocate":           {"iII", fdAllocate},
		"fd_close":              {"i", fdClose},
		"fd_datasync":           {"i", fdSync},
		"fd_fdstat_get":         {"ii", fdFdstatGet},
		"fd_fdstat_set_flags":   {"ii", fdFdstatSetFlags},
		"fd_fdstat_set_rights":  {"iII", fdFdstatSetRights},
		"fd_filestat_get":       {"ii", fdFilestatGet},
		"fd_filestat_set_size":  {"iI", fdFilestatSetSize},
		"fd_filestat_set_times": {"iIIi", fdFilestatSetTimes},
		"fd_pread":              {"iiiIi", fdPread},
		"fd_prestat_get":        {"ii", fdPrestatGet},
		"fd_prestat_dir_name":   {"iii", fdPrestatDirName},
		"fd_pwrite":             {"iiiIi", fdPwrite},
		"fd_read":               {"iiii", fdRead},
		"fd_readdir":            {"iiiIi", fdReaddir},
		"fd_renumber":           {"ii", fdRenumber},
		"fd_seek":               {"iIii", fdSeek},
		"fd_sync":               {"i", fdSync},
		"fd_tell":               {"ii", fdTell},
		"fd_write":              {"iiii", fdWrite},

		"path_create_directory":   {"iii", pathCreateDirectory},
		"path_filestat_get":       {"iiiii", pathFilestatGet},
		"path_filestat_set_times": {"iiiiIIi", pathFilestatSetTimes},
		"path_link":               {"iiiiiii", pathLink},
		"path_open":               {"iiiiiIIii", pathOpen},
		"path_readlink":           {"iiiiii", pathReadlink},
		"path_remove_directory":   {"iii", pathRemoveDirectory},
		"path_rename":             {"iiiiii", pathRename},
		"path_symlink":            {"iiiii", pathSymlink},
		"path_unlink_file":        {"iii", pathUnlinkFile},

		"sock_accept":   {"iii", sockAccept},
		"sock_recv":     {"iiiiii", sockRecv},
		"sock_send":     {"iiiii", sockSend},
		"sock_shutdown": {"ii", sockShutdown},
	}
	for name, x := range socketExports() {
		e[name] = x
	}
	return e
}

// Offers reports whether a guest may import the function.
func Offers(module, name string) bool {
	if module != ModuleName {
		return false
	}
	_, ok := exports()[name]
	return ok || name == "proc_exit"
}

// Instantiate adds the host functions to a runtime, for all guests of it. Each
// guest's calls must carry its System: see WithSystem.
func Instantiate(ctx context.Context, r wazero.Runtime) error {
	b := r.NewHostModuleBuilder(ModuleName)
	all := exports()
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		x := all[name]
		b.NewFunctionBuilder().
			WithGoModuleFunction(x.call(needs(name)), x.types(), []api.ValueType{api.ValueTypeI32}).
			WithName(name).Export(name)
	}
	b.NewFunctionBuilder().
		WithGoModuleFunction(api.GoModuleFunc(procExit), []api.ValueType{api.ValueTypeI32}, nil).
		WithName("proc_exit").Export("proc_exit")
	if _, err := b.Instantiate(ctx); err != nil {
		return fmt.Errorf("host functions: %w", err)
	}
	return nil
}

func (x export) types() []api.ValueType {
	t := make([]api.ValueType, 0, len(x.params))
	for _, c := range x.params {
		if c == 'I' {
			t = append(t, api.ValueTypeI64)
		} else {
			t = append(t, api.ValueTypeI32)
		}
	}
	return t
}

func (x export) call(wants []need) api.GoModuleFunc {
	return func(ctx context.Context, mod api.Module, stack []uint64) {
		s := systemOf(ctx)
		s.checkStop()
		e := s.may(wants, params(stack))
		if e == Success {
			e = x.fn(s, memory{mod.Memory()}, params(stack))
		}
		stack[0] = uint64(e)
	}
}

// systemCtx carries a System at no cost per call.
type systemCtx struct {
	context.Context //nolint:containedctx // it is a context
	sys             *System
}

type systemKey struct{}

// Value serves those that wrapped the context once more.
func (c systemCtx) Value(key any) any {
	if key == (systemKey{}) {
		return c.sys
	}
	return c.Context.Value(key)
}

// WithSystem returns a context for a guest's calls.
func WithSystem(ctx context.Context, s *System) context.Context {
	return systemCtx{ctx, s}
}

func systemOf(ctx context.Context) *System {
	if c, ok := ctx.(systemCtx); ok {
		return c.sys
	}
	s, _ := ctx.Value(systemKey{}).(*System)
	return s
}

func notOffered(*System, memory, params) Errno { return ENOSYS }
