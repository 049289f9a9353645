"""General helpers without knowledge of models: conversion, tables, budgets, extensions, the store on disk."""
