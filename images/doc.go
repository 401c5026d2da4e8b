// Package images turns a package reference into a sealed image: one that is
// addressed by its content, can be rebuilt to the same digest from its version
// lock, and runs without any registry.
//
// Fetching and running are two acts. The fetch runs the ecosystem's own tools
// (npm, apt-get, dpkg-deb) as an ordinary user with install scripts off: no
// code of a package ever runs here. What comes back is checked and packed into
// OCI layers that only root owns and nobody may write.
//
// The package opens no connection itself: registries, mirrors, proxies and
// credentials are those of the user's own npm and apt configuration, and no
// registry's name appears here. It may never run a package's code, need root,
// write outside its cache folder, or know how an image is run.
package images
