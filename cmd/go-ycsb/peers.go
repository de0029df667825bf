//go:build peers

package main

// Databases of go-ycsb v1.0.1 to compare drtmx with: make build PEERS=1 compiles them
// in.
import (
	_ "github.com/pingcap/go-ycsb/db/badger"
	_ "github.com/pingcap/go-ycsb/db/boltdb"
	_ "github.com/pingcap/go-ycsb/db/pg"
	_ "github.com/pingcap/go-ycsb/db/redis"
)

func init() {
	drivers = append(drivers, "badger", "boltdb", "pg", "redis")
}
