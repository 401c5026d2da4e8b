package images

import (
	"path/filepath"
	"strings"
)

// setting looks up a variable; the last one counts, as in exec.
func setting(env []string, name string) string {
	value := ""
	for _, e := range env {
		if k, v, ok := strings.Cut(e, "="); ok && k == name {
			value = v
		}
	}
	return value
}

func splitPath(env []string) []string { return filepath.SplitList(setting(env, "PATH")) }

// fetchEnv is what a program that fetches gets of the caller's environment:
// where programs are, how to reach a registry, and what npm is told there.
// Everything else, and all that could make node load code, stays out.
func fetchEnv(env []string, home string) []string {
	out := []string{"LC_ALL=C", "HOME=" + home}
	for _, e := range env {
		k, _, _ := strings.Cut(e, "=")
		low := strings.ToLower(k)
		switch low {
		case "path", "http_proxy", "https_proxy", "no_proxy", "all_proxy", "node_extra_ca_certs",
			"ssl_cert_file", "ssl_cert_dir", "npm_token", "node_auth_token":
			out = append(out, e)
		default:
			if strings.HasPrefix(low, "npm_config_") && low != "npm_config_node_options" && low != "npm_config_script_shell" {
				out = append(out, e)
			}
		}
	}
	return out
}
