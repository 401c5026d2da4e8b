package netguard

import "strings"

// specialName reports whether a name must never be looked up upstream: one of
// a single label, a special-use domain (RFC 6761 and its registry: localhost,
// local, test, invalid, onion, alt, home.arpa), the reverse and other
// infrastructure zones under arpa, the private-use domain internal, or a name
// that exists only to reach a cloud's metadata.
func specialName(name string) bool {
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return true
	}
	switch name[i+1:] {
	case "localhost", "local", "test", "invalid", "onion", "alt", "arpa", "internal":
		return true
	}
	return metadataName(name)
}

// metadataName reports whether a name stands for a metadata service. Such a
// name is refused even as a local endpoint.
func metadataName(name string) bool {
	switch name {
	case "metadata", "metadata.google.internal", "metadata.goog", "instance-data",
		"instance-data.ec2.internal", "metadata.azure.internal", "metadata.azure.com",
		"metadata.tencentyun.com", "metadata.platformequinix.com":
		return true
	}
	return strings.HasSuffix(name, ".metadata.google.internal") || strings.HasSuffix(name, ".metadata.goog")
}

// localhostName reports whether a name is localhost or below it (RFC 6761,
// 6.3): such a name must answer loopback and nothing else.
func localhostName(name string) bool {
	return name == "localhost" || strings.HasSuffix(name, ".localhost")
}
