// Package tokens keeps logins to remote servers in files: one a login, mode
// 0600, in a folder of mode 0700, both of this user.
//
// It may never read a file that another could have written or read, follow a
// link to one, or show what is in it.
package tokens
