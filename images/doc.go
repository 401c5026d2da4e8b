// Package images turns a package reference into a sealed image: one that is
// addressed by its content, can be rebuilt to the same digest from its version
// lock, and runs without any registry.
//
// Fetching and running are two acts. The fetch runs the ecosystem's own tool in
// a sandbox whose way out, which is handed in, leads to that ecosystem's
// registry; install scripts are off. What comes back is hostile: it is checked
// and packed into OCI layers that only root owns and nobody may write. The base
// that such a sandbox is made of is fetched outside, by apt-get and dpkg-deb as
// an ordinary user, and Node and npm by their pinned hashes.
//
// The package opens no connection itself: registries, mirrors, proxies and
// credentials are those of the user's own clients, and no registry's name
// appears here. It may never run a package's code outside a sandbox, need root,
// write outside its cache folder, or know how an image is run.
package images
