//go:build modules

package etcd

// This file is never built. It makes go.mod require a version of genproto that
// does not have the packages that grpc takes from the modules split from it. A
// program that also uses an old version, as go-ycsb does, would otherwise have
// them twice, and go mod tidy would end in an ambiguous import.
import _ "google.golang.org/genproto/googleapis/type/date"
