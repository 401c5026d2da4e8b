package images

import (
	"encoding/json"
	"regexp"
	"strings"
)

var (
	npmCodeRE = regexp.MustCompile(`(?m)^npm (?:error|ERR!) code (\S+)`)
	codeRE    = regexp.MustCompile(`^[A-Z][A-Z0-9_]{1,40}$`)
	// Addresses in npm's words can carry credentials and say where the user's
	// registry is: they are left out.
	urlRE = regexp.MustCompile(`[a-z+]+://\S+`)
)

const npmConfigHint = "check the registry and proxy of your npm configuration; npm ping tells more"

// npmError makes one clear line of npm's failure.
func npmError(err error, res result, job npmJob) error {
	if !ranAndFailed(err) {
		return err
	}
	code, summary := npmCode(res)
	what := job.name + "@" + job.spec
	switch code {
	case "E404":
		if other := missing(summary); other != "" && other != job.name {
			return fail(ErrNotFound, "package "+job.name+" needs "+quoted(other)+", which the configured npm registry does not have", "")
		}
		return fail(ErrNotFound, "package "+job.name+" not found in the configured npm registry", "check its name, and the registry of your npm configuration")
	case "ETARGET", "ENOVERSIONS":
		return fail(ErrNotFound, "the configured npm registry has no version to satisfy "+what+" and what it depends on", "npm view "+job.name+" versions lists them")
	case "E401", "E403", "ENEEDAUTH", "EOTP":
		return fail(ErrDenied, "the configured npm registry refused access to "+what, "log in with npm login, or fix the token in your npm configuration")
	case "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "ENETUNREACH", "ERR_SOCKET_TIMEOUT",
		"EPROTO", "ERR_SSL_WRONG_VERSION_NUMBER", "FETCH_ERROR", "ENETWORK", "EIDLETIMEOUT", "ECONNECTIONTIMEOUT":
		return fail(ErrNetwork, "the configured npm registry could not be reached ("+code+")", npmConfigHint)
	case "CERT_HAS_EXPIRED", "DEPTH_ZERO_SELF_SIGNED_CERT", "SELF_SIGNED_CERT_IN_CHAIN", "UNABLE_TO_GET_ISSUER_CERT_LOCALLY", "UNABLE_TO_VERIFY_LEAF_SIGNATURE", "ERR_TLS_CERT_ALTNAME_INVALID":
		return fail(ErrNetwork, "the configured npm registry's certificate is not trusted ("+code+")", "set cafile in your npm configuration")
	case "EINTEGRITY":
		return fail(ErrRefused, "a tarball of "+what+" does not have the hash that the registry or the lock promised", "do not use it; if the lock is old, look at what changed before you update it")
	case "EBADPLATFORM":
		return fail(ErrRefused, what+" is not made for "+platform(), "")
	case "EUNSUPPORTEDPROTOCOL", "EALLOWGIT", "EALLOWREMOTE", "EALLOWFILE", "EALLOWDIRECTORY":
		return fail(ErrRefused, what+" depends on something outside the registry (git, a URL or a folder)", "only what the registry vouches for by hash is built")
	case "TAR_ABORT", "TAR_BAD_ARCHIVE", "TAR_ENTRY_INVALID", "Z_DATA_ERROR", "Z_BUF_ERROR":
		return fail(ErrRefused, "a tarball of "+what+" is broken or blows up beyond reason ("+code+")", "do not use it")
	case "EUSAGE":
		return fail(ErrRefused, "the lock of "+what+" does not fit together", "update it")
	case "ENOSPC":
		return fail(ErrTool, "no space left on the disk while fetching "+what, "free some, or move the cache folder")
	}
	if strings.HasPrefix(code, "E5") {
		return fail(ErrNetwork, "the configured npm registry answered with an error ("+code+")", "try again later")
	}
	return fail(ErrTool, status("npm", err)+": "+strings.TrimSpace(code+" "+quoted(urlRE.ReplaceAllString(summary, "<address>"))), "")
}

// npmCode reads the code and the summary from what npm prints with --json.
func npmCode(res result) (code, summary string) {
	var out struct {
		Error struct {
			Code    any    `json:"code"`
			Summary string `json:"summary"`
		} `json:"error"`
	}
	if i := strings.IndexByte(string(res.stdout), '{'); i >= 0 && json.Unmarshal(res.stdout[i:], &out) == nil {
		code, _ = out.Error.Code.(string)
		summary = out.Error.Summary
	}
	if code == "" {
		if m := npmCodeRE.FindSubmatch(res.stderr); m != nil {
			code = string(m[1])
		}
	}
	if summary == "" {
		summary = strings.TrimSpace(string(res.stderr))
	}
	if !codeRE.MatchString(code) {
		code = ""
	}
	return code, summary
}

var missingRE = regexp.MustCompile(`(?:GET \S+/|')((?:@|%40)?[A-Za-z0-9._~-]+(?:(?:/|%2[fF])[A-Za-z0-9._~-]+)?)(?:@[^' ]*)?(?:'| - )`)

// missing finds which package a 404 was about.
func missing(summary string) string {
	m := missingRE.FindStringSubmatch(summary)
	if m == nil {
		return ""
	}
	return strings.NewReplacer("%40", "@", "%2f", "/", "%2F", "/").Replace(m[1])
}
