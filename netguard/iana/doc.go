// Package iana says what kind of address an address is, from tables generated
// out of the IANA registries that lie beside it as data: both special-purpose
// registries (RFC 6890) and the IPv6 address space, with classes.csv naming a
// class for each row and adding the few blocks that no registry row covers,
// and metadata.csv listing cloud metadata services.
//
// A registry row without a class fails the generator, so that a new row is
// looked at; it is never taken for public. This package may never resolve,
// dial or keep state.
package iana

//go:generate go run ./gen -dir . -out table.go
