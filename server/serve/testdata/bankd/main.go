// Command bankd serves the tables and procedures of package bank.
package main

import (
	"drtmx/server/serve"
	"drtmx/server/serve/testdata/bank"
)

func main() {
	serve.Main(serve.Program{Name: "bankd", Catalog: bank.Catalog(), Procedures: bank.Procedures()})
}
