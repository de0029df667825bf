//go:build verbs

package indextest

import (
	"os"

	"drtmx/rdma/verbs"
)

// devices is the variant over an RDMA device, if one is named.
func devices() []Variant {
	device := os.Getenv("DRTMX_VERBS_DEVICE")
	if device == "" {
		return nil
	}
	p, err := verbs.New(verbs.Options{Device: device})
	if err != nil {
		panic(err) // options out of range, and there are none
	}
	return []Variant{{Name: "verbs", Checksums: true, Provider: p, Brief: 8}}
}
